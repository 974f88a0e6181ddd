# ckpt_layer(NAME DEPS …): one layer of the architecture. Its sources are the *.cc of its folder; its unit tests
# (*_test.cc) link the layer, its declared dependencies and GoogleTest, and nothing else: a use of an undeclared layer is a
# link error. TEST_DEPS adds what only tests may use, TEST_ENVIRONMENT (NAME=VALUE …) is what ctest runs them in.
include_guard(GLOBAL)

function(ckpt_layer name)
  cmake_parse_arguments(L "" "" "DEPS;TEST_DEPS;TEST_ENVIRONMENT" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|_bench|main)\\.cc$")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/libckpt/include)
    target_link_libraries(${name} PUBLIC ${L_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/libckpt/include)
    target_link_libraries(${name} INTERFACE ${L_DEPS})
  endif()
  if(tests AND CKPT_BUILD_TESTS)
    ckpt_test(${name}_test SOURCES ${tests} DEPS ${name} ${L_TEST_DEPS} ENVIRONMENT ${L_TEST_ENVIRONMENT})
  endif()
endfunction()

# ckpt_test(NAME SOURCES … DEPS …): a GoogleTest binary whose cases ctest knows one by one, labelled with the binary's
# name: `ctest -L` picks some binaries when the others are not built.
function(ckpt_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPS;ENVIRONMENT" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_DEPS} GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS ${name}
                       ENVIRONMENT "${T_ENVIRONMENT}")
endfunction()

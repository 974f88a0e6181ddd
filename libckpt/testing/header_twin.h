// For tests that hold our declarations of somebody else's interface against its header: the type
// that a declaration of theirs has in our words. Their structs are told by a specialisation.
#pragma once

#include <type_traits>

namespace ckpt::testing {

// Enums of theirs are ints of ours; anything that is not told otherwise is the same type.
template <typename Theirs>
struct Plain {
  using Type = std::conditional_t<std::is_enum_v<Theirs>, int, Theirs>;
};
template <typename T>
struct Plain<T*> {
  using Type = typename Plain<T>::Type*;
};
template <typename T>
struct Plain<const T> {
  using Type = const typename Plain<T>::Type;
};
template <typename R, typename... P>
struct Plain<R(P...)> {
  using Type = typename Plain<R>::Type(typename Plain<P>::Type...);
};

}  // namespace ckpt::testing

// At namespace scope, outside of any namespace.
#define CKPT_TWIN_STRUCT(theirs, ours)  \
  template <>                           \
  struct ckpt::testing::Plain<theirs> { \
    using Type = ours;                  \
  };
#define CKPT_SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #ours);

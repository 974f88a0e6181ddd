// Errors of the library as exceptions, and exceptions of callbacks on their way through it.
#pragma once

#include <ckpt/ckpt.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

namespace ckpt_python {

namespace nb = nanobind;

// Pre: the GIL is held. A libckpt.Error; frees `error`.
inline nb::object ToPython(ckpt_error_t* error) {
  const int32_t code = ckpt_error_code(error);
  const bool applied = ckpt_error_outcome(error) != 0;
  const std::string message = ckpt_error_message(error);
  ckpt_error_free(error);
  return nb::module_::import_("libckpt._errors").attr("from_library")(code, applied, message);
}

// Pre: the GIL is held. Throws libckpt.Error.
inline void Check(ckpt_error_t* error) {
  if (error == nullptr) return;
  const nb::object made = ToPython(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw nb::python_error();
}

template <typename Call>
ckpt_error_t* WithoutGil(Call&& call) {
  nb::gil_scoped_release release;
  return call();
}

// An exception of a callback, on its way to the call that the callback was made from.
class Pending {
 public:
  template <typename Call>
  int32_t Guard(Call&& call) noexcept {
    nb::gil_scoped_acquire acquire;
    try {
      call();
      return 0;
    } catch (nb::python_error& error) {
      if (!error_) error_ = std::make_unique<nb::python_error>(std::move(error));
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      if (!error_) error_ = std::make_unique<nb::python_error>();
    }
    return 1;
  }
  // As Check, but an exception of a callback goes first.
  void Raise(ckpt_error_t* error) {
    if (error_ == nullptr) return Check(error);
    ckpt_error_free(error);
    const std::unique_ptr<nb::python_error> mine = std::move(error_);
    throw nb::python_error(*mine);
  }
  bool empty() const { return error_ == nullptr; }

 private:
  std::unique_ptr<nb::python_error> error_;
};

}  // namespace ckpt_python

// The parts that the extension module libckpt._core is made of.
#pragma once

#include <nanobind/nanobind.h>

void DefineCopies(nanobind::module_& m);

// Python's side of QuietRun (tensor/quiet.h). GIL held.
#pragma once

#include <pybind11/pybind11.h>

#include "list_item.h"

namespace op_tools::python {

// While an object lives, Python's warnings of this thread are not given. The warnings module is left as it was: the
// warnings that it noted as given once, and the filters, in which other threads find nothing new that concerns them.
class QuietWarnings {
 public:
  QuietWarnings();
  ~QuietWarnings();
  QuietWarnings(const QuietWarnings&) = delete;
  QuietWarnings& operator=(const QuietWarnings&) = delete;

 private:
  const ListItem item_;
};

void bind_quiet_warnings(pybind11::module_& module);

}  // namespace op_tools::python

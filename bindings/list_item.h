// An object that stands at the front of one of Python's own lists (warnings.filters, sys.meta_path) while this lives.
// Not by functions in Python, which an interrupt may end half-way. GIL held.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

class ListItem {
 public:
  ListItem(const char* module, const char* list, PyObject* item);
  ~ListItem();
  ListItem(const ListItem&) = delete;
  ListItem& operator=(const ListItem&) = delete;

 private:
  PyObject* const item_;
  pybind11::object list_;  // the list that got the item: others may replace it meanwhile
};

}  // namespace op_tools::python

#include "list_item.h"

#include "interrupts.h"

namespace op_tools::python {

ListItem::ListItem(const char* module, const char* list, PyObject* item)
    : item_(item), list_(py::getattr(py::module_::import(module), list, py::none())) {
  if (PyList_Check(list_.ptr()) && PyList_Insert(list_.ptr(), 0, item) == 0) return;
  forget_error();
  list_ = py::none();
}

ListItem::~ListItem() {
  if (list_.is_none()) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list_.ptr()); ++i) {
    if (PyList_GET_ITEM(list_.ptr(), i) != item_) continue;
    if (PySequence_DelItem(list_.ptr(), i) != 0) forget_error();
    return;
  }
}

}  // namespace op_tools::python

#include "quiet_warnings.h"

namespace op_tools::python {

namespace py = pybind11;

namespace {

thread_local int tl_quiet = 0;

// A filter's pattern for the text: the warnings module calls its match().
struct QuietThread {};

PyObject* g_item = nullptr;  // of warnings.filters: (action, text, category, module, line)

}  // namespace

// Not by the functions of the warnings module: they make it forget warnings that it has given once.
QuietWarnings::QuietWarnings() : item_("warnings", "filters", g_item) {
  ++tl_quiet;
}

QuietWarnings::~QuietWarnings() {
  --tl_quiet;
}

void bind_quiet_warnings(py::module_& module) {
  py::class_<QuietThread>(module, "QuietThread").def("match", [](const QuietThread&, const py::object&) {
    return tl_quiet > 0;
  });
  g_item = py::make_tuple("ignore", QuietThread(), py::handle(PyExc_Warning), py::none(), 0).release().ptr();
}

}  // namespace op_tools::python

#include "python_timing.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/PyInterpreter.h>

#include <string>
#include <string_view>

#include "base/log.h"
#include "interrupts.h"
#include "list_item.h"
#include "python_host.h"
#include "python_values.h"
#include "quiet_warnings.h"
#include "tensor/internal_guard.h"
#include "tensor/profiler.h"
#include "torch_function_mode.h"

namespace op_tools::python {
namespace {

thread_local int tl_no_imports = 0;
PyObject* g_no_imports = nullptr;  // of sys.meta_path

// While an object lives, this thread imports nothing that is not there already: ImportError.
class NoImports {
 public:
  NoImports() : item_("sys", "meta_path", g_no_imports) { ++tl_no_imports; }
  ~NoImports() { --tl_no_imports; }
  NoImports(const NoImports&) = delete;
  NoImports& operator=(const NoImports&) = delete;

 private:
  const ListItem item_;
};

struct RefusesImports {};

}  // namespace

int64_t flops_in_python(std::string_view op, Phase phase, const Value& sample) {
  if (!Py_IsInitialized()) return -1;
  const py::gil_scoped_acquire gil;
  // Formulas are asked by running the operator on meta tensors: neither a tool nor a profiler may see that.
  const c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
  const ProfilerPause unprofiled;
  try {
    // All of it: Python looks for signals in functions of its own in C, too (repr).
    return to_its_end([&] {
      const auto values = to_python(sample).cast<py::tuple>();
      const QuietWarnings quiet;
      const NoImports no_imports;
      const WithoutTorchFunction no_modes;
      // Modes and grad mode are put back here: Python code that does it may be interrupted.
      const at::ThreadLocalState before;
      const at::ThreadLocalStateGuard restored(before);
      const c10::AutoGradMode no_grad(false);
      return host_functions()
          .count_flops(py::str(op.data(), op.size()), phase == Phase::kBackward, values[0], values[1])
          .cast<int64_t>();
    });
  } catch (const std::exception& error) {
    log::debug("no operation count of " + std::string(op) + ": " + error.what());
    return -1;
  }
}

void bind_timing(py::module_& module) {
  py::class_<RefusesImports>(module, "RefusesImports")
      .def("find_spec", [](const RefusesImports&, const py::str& name, const py::args&) {
        if (tl_no_imports > 0) throw py::import_error(name.cast<std::string>() + " is not imported for a tool");
        return py::none();
      });
  g_no_imports = py::cast(RefusesImports()).release().ptr();
}

}  // namespace op_tools::python

#include "graph_nodes.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/host.h"
#include "compare/compare_hook.h"
#include "hooks/module_path.h"

namespace op_tools::python {
namespace {

namespace py = pybind11;

// A program has as many as it has places in its code. nullptr: empty.
const std::string* kept(const std::string& text) {
  static auto* const texts = new std::unordered_set<std::string>;  // leaked: calls of any thread point to them
  return text.empty() ? nullptr : &*texts->insert(text).first;
}

class GraphNodes {
 public:
  explicit GraphNodes(const std::vector<std::pair<std::string, std::string>>& places) {
    for (const auto& [line, module] : places) places_.push_back({kept(line), kept(module)});
  }
  // The node of this number runs now in this thread.
  void enter(size_t number) const { set_graph_node(&places_.at(number)); }

 private:
  std::vector<Place> places_;
};

}  // namespace

void bind_graph_nodes(py::module_& module) {
  py::class_<GraphNodes>(module, "GraphNodes")
      .def(py::init<const std::vector<std::pair<std::string, std::string>>&>())
      .def("enter", &GraphNodes::enter)
      .def("leave", [](const GraphNodes&) { set_graph_node(nullptr); });
  // The folder of the files of a run of OpAutoCompare, made now; "" for other tools, or where it cannot be made.
  module.def("claim_folder", [](const std::shared_ptr<Hook>& hook) {
    auto* const compare = dynamic_cast<CompareHook*>(hook.get());
    const py::gil_scoped_release no_gil;
    return compare ? compare->claim_folder() : std::string();
  });
  module.def("current_module", [] {
    const std::string* const path = host().place(/*line=*/false, /*module=*/true).module;
    return path ? *path : std::string();
  });
}

}  // namespace op_tools::python

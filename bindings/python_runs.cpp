#include "python_runs.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/call_list.h"
#include "python_values.h"
#include "record/made_recording.h"
#include "runs/call_keys.h"
#include "runs/key_alignment.h"
#include "runs/many_runs.h"
#include "runs/recorded_items.h"
#include "runs/run_comparison.h"
#include "runs/run_part.h"
#include "runs/run_rows.h"

namespace op_tools::python {
namespace {

const char* odd_finding_name(OddFinding finding) {
  switch (finding) {
    case OddFinding::kResults:
      return "results";
    case OddFinding::kParameter:
      return "parameter";
    case OddFinding::kCollective:
      return "collective";
    case OddFinding::kNotFromInputs:
      return "not_from_inputs";
    case OddFinding::kChangedInput:
      return "changed_input";
    case OddFinding::kGiven:
      return "given";
  }
  return "";
}

namespace py = pybind11;
using SharedRecording = RunComparison::SharedRecording;

std::unique_ptr<RunComparison> compare_runs(
    SharedRecording a, SharedRecording b, const SharedRecording& noise,
    const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>& fusions) {
  std::vector<Fusion> known;
  for (const auto& [left, right] : fusions) known.push_back({left, right});
  const py::gil_scoped_release no_gil;
  return std::make_unique<RunComparison>(std::move(a), std::move(b), noise.get(), known);
}

py::list different_op_counts(const Recording& a, const Recording& b) {
  py::list counts;
  for (const OpCounts& row : different_counts(a, b)) counts.append(py::make_tuple(row.op, row.phase, row.a, row.b));
  return counts;
}

}  // namespace

void bind_runs(py::module_& module) {
  module.def("make_recording",
             [](const py::dict& rows) { return std::make_shared<Recording>(make_recording(to_value(rows))); });

  py::class_<RunComparison>(module, "RunComparison")
      .def("__len__", [](const RunComparison& comparison) { return comparison.divergence().rows.size(); })
      .def("row", [](const RunComparison& comparison,
                     size_t number) { return to_python(RunRow::columns().value(comparison.row(number))); })
      .def("counts", &RunComparison::counts)
      .def("worst", &RunComparison::worst)
      .def("chain", &RunComparison::chain)
      .def("births", &RunComparison::births)
      .def("other_dtypes", &RunComparison::other_dtypes)
      .def("calls_of", &RunComparison::calls_of)
      .def_property_readonly(
          "a", [](const RunComparison& comparison) { return std::const_pointer_cast<Recording>(comparison.a()); })
      .def_property_readonly(
          "b", [](const RunComparison& comparison) { return std::const_pointer_cast<Recording>(comparison.b()); })
      .def_property_readonly("pairs", [](const RunComparison& comparison) { return comparison.alignment().b_of_a; })
      .def_property_readonly("first",
                             [](const RunComparison& comparison) -> py::object {
                               if (comparison.divergence().first == kNoRow) return py::none();
                               return py::int_(comparison.divergence().first);
                             })
      .def_property_readonly("is_judged",
                             [](const RunComparison& comparison) { return comparison.divergence().is_judged; })
      .def_property_readonly("first_by_step",
                             [](const RunComparison& comparison) { return comparison.divergence().first_by_step; })
      .def_property_readonly("steps_only_a",
                             [](const RunComparison& comparison) { return comparison.alignment().steps_only_a; })
      .def_property_readonly("steps_only_b",
                             [](const RunComparison& comparison) { return comparison.alignment().steps_only_b; });
  module.def("compare_runs", &compare_runs, py::arg("a"), py::arg("b"), py::kw_only(), py::arg("noise") = py::none(),
             py::arg("fusions") = py::list());
  // Of each run that is odd: run, call, a run of the majority, its call, runs like it, runs of the majority, what
  // differs
  // ("results", "parameter", "collective", "not_from_inputs", "changed_input", "given"), the next collective or None,
  // and whether the difference came through a collective from an odd rank of the same launch. By run how many of its
  // calls the first run does not make, or the other way round. How many calls were compared, and the others by the
  // reason.
  module.def("find_odd_calls", [](const std::vector<SharedRecording>& runs, const std::vector<uint32_t>& launches) {
    std::vector<const Recording*> all;
    for (const SharedRecording& run : runs) all.push_back(run.get());
    OddCalls calls;
    {
      const py::gil_scoped_release no_gil;
      calls = find_odd_calls(all, launches);
    }
    py::list odd;
    for (const OddCall& odd_call : calls.odd) {
      const py::object collective =
          odd_call.collective == kNoCall ? py::object(py::none()) : py::int_(odd_call.collective);
      odd.append(py::make_tuple(odd_call.run, odd_call.call, odd_call.majority, odd_call.majority_call,
                                odd_call.like_it, odd_call.others, odd_finding_name(odd_call.finding), collective,
                                odd_call.is_reached));
    }
    py::dict votes;
    for (size_t vote = 0; vote < kCallVoteNames.size(); ++vote) {
      votes[kCallVoteNames[vote]] = calls.calls[vote];
    }
    return py::make_tuple(odd, calls.apart, votes);
  });
  // The calls of the steps from the first to before the end, as a recording.
  module.def("steps_of", [](const Recording& run, int64_t first, int64_t end) {
    const py::gil_scoped_release no_gil;
    return std::make_shared<Recording>(steps_of(run, first, end));
  });
  // Parts of a recording in a file: the calls before the first end, those from there to before the second, ...
  py::class_<RecordingParts>(module, "RecordingParts")
      .def(py::init([](const Recording& run, const std::vector<int64_t>& ends) {
             const py::gil_scoped_release no_gil;
             return std::make_unique<RecordingParts>(run, ends);
           }),
           py::arg("run"), py::arg("ends"))
      .def("read", [](const RecordingParts& parts, size_t part) {
        const py::gil_scoped_release no_gil;
        return std::make_shared<Recording>(parts.read(part));
      });
  module.def("calls_by_step", &calls_by_step);
  module.def("first_collective", &first_collective);
  module.def("unwritten_values", [](const Recording& run) { return unwritten_values(run); });
  module.def("different_op_counts", &different_op_counts);
  // By number of the call its item in a list for `only_calls=`; "": it has none.
  module.def("recorded_items", [](const Recording& run) {
    std::vector<std::string> items;
    for (const uint64_t item : recorded_items(run)) items.push_back(item == 0 ? "" : item_text(item));
    return items;
  });
  module.def("align_keys", [](const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    const py::gil_scoped_release no_gil;
    return align_keys(a, b);
  });
}

}  // namespace op_tools::python

#include "python_record.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "python_values.h"
#include "record/optimizer_moves.h"
#include "record/recording_file.h"

namespace op_tools::python {
namespace {

py::str row_text(std::string_view bytes) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

// Rows as tuples, in the order of the fields of op_tools' classes.
py::tuple call_row(const Recording& recording, size_t i) {
  const RecordedCall& call = recording.calls.at(i);
  const auto uses = [&](c10::ArrayRef<RecordedUse> some) {
    py::list list;
    for (const RecordedUse& use : some) list.append(py::make_tuple(row_text(recording.string(use.place)), use.value));
    return list;
  };
  const auto text = [&](StringNumber number) { return row_text(recording.string(number)); };
  return py::make_tuple(call.id, text(call.op), std::string(to_string(call.level)), to_string(call.phase), call.step,
                        text(call.module), call.module_call, text(call.line), text(call.error), text(call.scalars),
                        text(call.random), call.thread, call.pass, call.forward_id, call.grad_enabled,
                        uses(recording.inputs(call)), uses(recording.outputs(call)));
}

py::tuple value_row(const Recording& recording, size_t i) {
  const RecordedValue& value = recording.values.at(i);
  const auto sizes = [&](ListNumber number) {
    py::tuple list(recording.list(number).size());
    for (size_t k = 0; k < list.size(); ++k) list[k] = recording.list(number)[k];
    return list;
  };
  const py::object producer = value.producer == kNoCall ? py::object(py::none()) : py::int_(value.producer);
  return py::make_tuple(kOriginNames[static_cast<size_t>(value.origin)], row_text(recording.string(value.name)),
                        producer, value.output, torch_name(value.dtype), row_text(recording.string(value.device)),
                        sizes(value.shape), sizes(value.stride), value.known, value.hash, value.nan, value.inf,
                        value.zero, value.min, value.max, value.mean, value.norm, value.projections, value.in_doubt());
}

// How many calls each module made in each line: (module, line, calls), in the order of the first calls.
py::list calls_by_place(const Recording& recording) {
  std::map<std::pair<StringNumber, StringNumber>, size_t> place_of;
  std::vector<std::pair<std::pair<StringNumber, StringNumber>, size_t>> places;
  for (const RecordedCall& call : recording.calls) {
    const auto [place, is_new] = place_of.emplace(std::pair(call.module, call.line), places.size());
    if (is_new) places.emplace_back(place->first, 0);
    ++places[place->second].second;
  }
  py::list rows;
  for (const auto& [place, calls] : places) {
    rows.append(
        py::make_tuple(row_text(recording.string(place.first)), row_text(recording.string(place.second)), calls));
  }
  return rows;
}

// The numbers of the calls that raised.
std::vector<size_t> failed_calls(const Recording& recording) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    if (recording.calls[i].error != 0) numbers.push_back(i);
  }
  return numbers;
}

// How many values of tensors were on each type of device: {"cpu": 4, "sim": 12}.
std::map<std::string, int64_t> values_by_device(const Recording& recording) {
  std::vector<int64_t> by_string(recording.strings.size());
  for (const RecordedValue& value : recording.values) ++by_string[value.device];
  std::map<std::string, int64_t> by_type;
  for (size_t i = 1; i < by_string.size(); ++i) {  // string 0 is "": not known
    if (by_string[i] > 0) by_type[recording.strings[i].substr(0, recording.strings[i].find(':'))] += by_string[i];
  }
  return by_type;
}

// A tool does without a value that it could not compute (no memory is left).
template <class Compute>
std::optional<at::Tensor> if_computed(Compute&& compute) {
  try {
    const at::Tensor tensor = compute();
    if (tensor.defined()) return tensor;
  } catch (const c10::Error& error) {
    log::debug(error.what_without_backtrace());
  }
  return std::nullopt;
}

}  // namespace

void bind_record(py::module_& module) {
  py::class_<Recording, std::shared_ptr<Recording>>(module, "Recording")
      .def_property_readonly("path", [](const Recording& recording) { return text_of(recording.path); })
      .def_readonly("complete", &Recording::complete)
      .def_readonly("damage", &Recording::damage)
      .def_property_readonly("header", [](const Recording& recording) { return to_python(recording.header); })
      .def_property_readonly("calls", [](const Recording& recording) { return recording.calls.size(); })
      .def_property_readonly("values", [](const Recording& recording) { return recording.values.size(); })
      .def_property_readonly("known_values",
                             [](const Recording& recording) {
                               return std::count_if(recording.values.begin(), recording.values.end(),
                                                    [](const RecordedValue& value) { return value.known; });
                             })
      .def_property_readonly("has_blocks", [](const Recording& recording) { return !recording.blocks.empty(); })
      .def_property_readonly("devices", &values_by_device)
      .def_property_readonly("calls_by_place", &calls_by_place)
      .def_property_readonly("failed_calls", &failed_calls)
      // Of the rows of values: value, dimensions, count; and the prints of all of them, as bytes.
      .def_property_readonly("rows",
                             [](const Recording& recording) {
                               py::list list;
                               for (const RecordedRows& rows : recording.rows) {
                                 list.append(py::make_tuple(rows.value, rows.first_dim, rows.second_dim, rows.count));
                               }
                               return list;
                             })
      .def_property_readonly("prints",
                             [](const Recording& recording) {
                               return py::bytes(reinterpret_cast<const char*>(recording.prints.data()),
                                                recording.prints.size() * sizeof(RowPrint));
                             })
      .def("call", &call_row)
      .def("value", &value_row);
  module.def("read_recording", [](const py::str& text) {
    const std::string path = path_of(text);
    const py::gil_scoped_release no_gil;
    return std::make_shared<Recording>(read_recording(path));
  });
  module.def("read_recording_header",
             [](const py::str& path) { return to_python(read_recording_header(path_of(path))); });
  module.def(
      "recording_before_step",
      [](const Recording& run, int64_t step) { return std::make_shared<Recording>(before_step(run, step)); },
      py::arg("run"), py::arg("step"));
  module.def("find_recordings", [](const py::str& path) {
    py::list rows;
    for (const std::string& file : find_recordings(path_of(path))) rows.append(text_of(file));
    return rows;
  });
  module.def("copy_before_step",
             [](const at::Tensor& parameter) { return if_computed([&] { return copy_before_step(parameter); }); });
  module.def("move_along_gradient", [](const at::Tensor& before, const at::Tensor& after, const at::Tensor& gradient) {
    return if_computed([&] { return move_along_gradient(before, after, gradient); });
  });
}

}  // namespace op_tools::python

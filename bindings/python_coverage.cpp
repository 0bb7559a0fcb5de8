#include "python_coverage.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coverage/coverage.h"
#include "coverage/coverage_text.h"
#include "python_values.h"

namespace op_tools::python {
namespace {

// The tokens of an enumeration with their meanings, in its order.
template <class Kind>
std::vector<std::pair<std::string, std::string>> tokens() {
  std::vector<std::pair<std::string, std::string>> all;
  for (size_t i = 0; i < static_cast<size_t>(Kind::kCount); ++i) {
    const Token token = token_of(static_cast<Kind>(i));
    all.emplace_back(token.name, token.help);
  }
  return all;
}

Verdict verdict_named(const std::string& name) {
  for (size_t i = 0; i < static_cast<size_t>(Verdict::kCount); ++i) {
    const auto verdict = static_cast<Verdict>(i);
    if (token_of(verdict).name == name) return verdict;
  }
  throw Error("there is no verdict '" + name + "'");
}

std::string name_of(Verdict verdict) {
  return std::string(token_of(verdict).name);
}

void bind_account(py::module_& module) {
  py::class_<Coverage> account(module, "Coverage",
                               "The calls that a run of a tool examined, and those that it did not.");
  const auto made_from = [](const py::dict& fields) {
    Coverage coverage;
    set_fields(to_value(fields), coverage);
    return coverage;
  };
  const auto dict_of = [](const Coverage& self) { return to_python(op_tools::to_value(self)); };
  account
      .def(py::init([made_from](const py::kwargs& fields) { return made_from(fields); }))
      // py::dict by name: some versions of pybind11 want one type for what is saved and what is read.
      .def(py::pickle([dict_of](const Coverage& self) { return py::dict(dict_of(self)); }, made_from))
      .def(
          "__eq__", [](const Coverage& self, const Coverage& other) { return self == other; }, py::is_operator())
      .def("__repr__",
           [dict_of](const Coverage& self) { return "Coverage(" + py::repr(dict_of(self)).cast<std::string>() + ")"; })
      .def("to_dict", dict_of, "The fields by their names.")
      .def(
          "gaps",
          [](const Coverage& self) {
            std::vector<std::string> names;
            for (const Gap gap : gaps(self)) names.emplace_back(token_of(gap).name);
            return names;
          },
          "Tokens of why it is not known that nothing is wrong; empty where it is.")
      .def("reasons", &reasons, "The same in words.")
      .def("lines", &lines, "For people, above the verdict.")
      .def("lines_of_unseen", &lines_of_unseen, "For people, where something was unseen: of a tool without a verdict.");
  for (const ColumnDescription& field : describe_coverage().columns) {
    const std::string name = field.name;
    account.def_property(
        name.c_str(), [name](const Coverage& self) { return to_python(*find_key(op_tools::to_value(self), name)); },
        [name](Coverage& self, py::handle value) {
          set_fields(make_dict({{Value(name), to_value(value)}}), self);
        },
        py::doc(field.help.c_str()));
  }
}

}  // namespace

void bind_coverage(py::module_& module) {
  bind_account(module);
  module.def("verdict_of", [](bool wrong, bool has_gaps) { return name_of(verdict_of(wrong, has_gaps)); });
  module.def("exit_status", [](const std::string& verdict, bool allow_unseen) {
    return exit_status(verdict_named(verdict), allow_unseen);
  });
  module.def("worst_verdict", [](const std::vector<std::string>& names) {
    std::vector<Verdict> verdicts;
    for (const std::string& name : names) verdicts.push_back(verdict_named(name));
    return name_of(worst(verdicts));
  });
  module.def("accelerator", &accelerator);
  // Of docs, and of the enumerations in Python: name, [(token, meaning), ...].
  module.def("coverage_tokens", [] {
    return py::dict(py::arg("Verdict") = tokens<Verdict>(), py::arg("Gap") = tokens<Gap>(),
                    py::arg("Unjudged") = tokens<Unjudged>(), py::arg("Loss") = tokens<Loss>());
  });
  // The fields of an account, for docs: (name, type, meaning).
  module.def("coverage_fields", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> fields;
    for (const ColumnDescription& field : describe_coverage().columns)
      fields.emplace_back(field.name, field.type, field.help);
    return fields;
  });
}

}  // namespace op_tools::python

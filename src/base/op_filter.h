// Which operators a tool applies to. Compiled once when a scope is entered; asking it is const and thread-safe.
//
//   only  = "torch.Tensor.sort, torch.nn.functional.*"    skip = ".*norm"
//
// Comma-separated items, blanks trimmed, empty items ignored; each item is an ECMAScript regular expression
// that must match the whole name. An aten name matches with or without namespace and overload: aten::add.Tensor
// is matched by `aten::add.Tensor`, `add.Tensor`, `aten::add`, `add`, `.*\.Tensor`. A torch name only as it is:
// `torch.Tensor.add` does not match torch.Tensor.add_. Both given: skip is taken off only.
// A torch function may have several names (torch.unique, torch.functional.unique): any of them matches.
// A comma inside brackets, braces or parentheses ("a{1,2}") does not separate.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API OpFilter {
 public:
  // `only_source`, `skip_source` name where a list came from ("OP_CAPTURE_LIST", "ops="), for messages.
  // Throws Error naming the source and the item when an item is no valid expression.
  OpFilter(std::string_view only, std::string_view skip, std::string_view only_source, std::string_view skip_source);
  ~OpFilter();
  OpFilter(const OpFilter&) = delete;
  OpFilter& operator=(const OpFilter&) = delete;

  bool admits(std::string_view name) const;

  // True when an item of `only` matches: the user asked for this op by name, so rules that leave ops out
  // by default (metadata readers, composite ops) do not apply to it. False when `only` is empty.
  bool names(std::string_view name) const;

  bool has_only() const;  // an `only` list was given

  // Tells the filter that a call of this name passed, admitted or not; makes unmatched_items() know.
  void saw(std::string_view name) const;
  // An item of a list, and how to name it to people: "OP_CAPTURE_LIST: 'torch.Tensor.srot'".
  struct Unmatched {
    std::string text, described;
  };
  // Those of both lists that no name seen so far matched.
  std::vector<Unmatched> unmatched_items() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Further names of functions than other_names.h has, of another version of torch: name as tools see it, name as users
// may write it. From the Python package, at its first tool. Any thread; names that were added stay.
OP_TOOLS_API void add_other_names(const std::vector<std::pair<std::string, std::string>>& names);

}  // namespace op_tools

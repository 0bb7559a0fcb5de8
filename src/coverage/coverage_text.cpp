#include "coverage/coverage_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/text_table.h"

namespace op_tools {
namespace {

constexpr size_t kColumns = 80;

template <class Kind>
using Tokens = std::array<Token, static_cast<size_t>(Kind::kCount)>;

constexpr Tokens<Verdict> kVerdicts{{
    {"agrees", "nothing differs, and all work that matters was examined"},
    {"differs", "something is wrong, however much was examined"},
    {"not judged", "nothing examined is wrong, but unexamined work could be"},
}};

constexpr Tokens<Gap> kGaps{{
    {"tool_off", "the tool failed and was switched off"},
    {"nothing_seen", "no call came to the tool"},
    {"most_unjudged", "more results lack a verdict than have a verdict"},
    {"most_lost", "more calls were left out, by limits or for want of room, than were recorded"},
    {"not_on_accelerator", "the process has an accelerator, and no tensor that the tool saw was on it"},
    {"threads",
     "threads that the tool does not follow gave tensors on the accelerator, or made more calls than it saw"},
    {"native_calls",
     "C++ code called operators past level torch: some on the accelerator, or more than the tool saw calls"},
    {"processes",
     "processes that the program started to compute had no tool, or were killed before they wrote their account"},
    {"children", "processes that the program started had the tool, and it did not see all that they computed"},
    {"graphs", "compiled graphs ran whose operators the tool did not see"},
    {"wide_limits", "the limits of most results were wider than their values: zeros would have agreed, too"},
}};

constexpr Tokens<Unjudged> kUnjudged{{
    {"random", "random numbers that cannot be drawn again"},
    {"uninitialized", "memory that was never written, or that the operator leaves as scratch"},
    {"undetermined", "the operator leaves it open: an order, a sign, the factors of a decomposition"},
    {"no_reference", "the CPU cannot run the call, or gives nothing to compare with"},
    {"no_float64", "only float64 could decide, and it was not asked for or gives no such result"},
    {"raised", "the call was ended by the program, or refused by autograd, by a transform or for its devices"},
    {"no_form", "a value that cannot be copied: no plain tensor memory"},
    {"not_saved", "the files have no such value"},
    {"no_batch", "the call has no batch, or it is not known which of its dimensions that is"},
    {"judge_failed", "the comparison itself failed"},
}};

constexpr Tokens<Loss> kLosses{{
    {"limits", "left out by the tool's options"},
    {"no_room", "no room was left in a table or a buffer"},
    {"not_written", "it could not be written to the disk"},
    {"in_graph", "the device was recording a graph, in which nothing can be read or measured"},
    {"jagged", "a jagged nested tensor, whose sizes are no numbers; level=\"aten\" sees the operators on its values"},
}};

template <class Kind>
std::string type_of_field(const CountsBy<Kind>& /*field*/) {
  return CellType<std::map<std::string, uint64_t>>::name();
}
template <class T>
std::string type_of_field(const T& /*field*/) {
  return CellType<T>::name();
}

template <class Kind>
Value value_of_field(const CountsBy<Kind>& counts) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < CountsBy<Kind>::kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if (counts[kind] > 0) items.emplace_back(std::string(token_of(kind).name), static_cast<int64_t>(counts[kind]));
  }
  return make_dict(std::move(items));
}
template <class T>
Value value_of_field(const T& field) {
  return CellType<T>::value(field);
}

// False: the value is of another type.
template <class T>
bool read_field(const Value& value, T& field) {
  const T* read = value.get_if<T>();
  if (read) field = *read;
  return read != nullptr;
}
bool read_field(const Value& value, uint64_t& field) {
  const int64_t* number = value.get_if<int64_t>();
  if (!number || *number < 0) return false;
  field = static_cast<uint64_t>(*number);
  return true;
}
bool read_field(const Value& value, std::optional<bool>& field) {
  field.reset();
  return value.is<None>() || read_field(value, field.emplace());
}
bool read_field(const Value& value, std::map<std::string, uint64_t>& field) {
  const Dict* dict = value.get_if<Dict>();
  if (!dict) return false;
  field.clear();
  for (const auto& [key, count] : *dict->items) {
    const auto* name = key.get_if<std::string>();
    if (!name || !read_field(count, field[*name])) return false;
  }
  return true;
}
template <class Kind>
bool read_field(const Value& value, CountsBy<Kind>& field) {
  std::map<std::string, uint64_t> by_name;
  if (!read_field(value, by_name)) return false;
  field = {};
  for (size_t i = 0; i < CountsBy<Kind>::kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if (const auto field_node = by_name.extract(std::string(token_of(kind).name))) field[kind] = field_node.mapped();
  }
  return by_name.empty();
}

// visit(name, field, help) for each field of an account.
template <class Account, class Visit>
void visit_fields(Account& account, Visit&& visit) {
  visit("seen", account.seen, "calls that came to the tool");
  visit("steps", account.steps, "training steps that ended");
  visit("judged", account.judged, "results with a verdict");
  visit("not_judged", account.not_judged, "results without a verdict, by reason");
  visit("lost", account.lost, "calls that are not in the tool's result, by reason");
  visit("bytes", account.bytes, "of the tensors that were looked at, where the tool counts them");
  visit("wide_limits", account.wide_limits,
        "results that agree within a limit wider than their values: zeros would have agreed, too");
  visit("accelerator", account.accelerator, "the type of this process's accelerator; empty: none");
  visit("devices", account.devices, "results by the type of their device, where the tool notes it");
  visit("on_device", account.on_device,
        "a call that came to the tool gave a tensor on another device than the host; None: not asked");
  visit("threads", account.threads, "threads that ran operators unseen");
  visit("thread_calls", account.thread_calls, "their calls");
  visit("thread_calls_on_device", account.thread_calls_on_device, "those of them that gave tensors on an accelerator");
  visit("native_calls", account.native_calls,
        "level torch: operators that ran outside of torch functions and of backward passes, called by C++ code");
  visit("native_calls_on_device", account.native_calls_on_device, "those of them that gave tensors on an accelerator");
  visit("children", account.children,
        "processes that the program started and that had the tool: their calls are counted here");
  visit("children_wrong", account.children_wrong, "those of them in which something is wrong");
  visit("children_with_gaps", account.children_with_gaps, "those of them that computed unseen");
  visit("processes", account.processes,
        "processes that the program started to compute, without a tool, or killed before they wrote their account");
  visit("loaders", account.loaders, "processes that load data: they do not count against a verdict");
  visit("graphs", account.graphs, "compiled graphs, each of which came to the tool as a call");
  visit("compiled", account.compiled, "compiled graphs that the tool did not look into");
  visit("compiled_nodes", account.compiled_nodes, "operators in them, where they are known");
  visit("backends", account.backends, "those graphs by their compiler, where it is known");
  visit("eager", account.eager, "compiled functions that ran as without torch.compile, as the tool was told");
  visit("off", account.off, "the tool failed and was switched off");
}

std::string in_words(std::string_view token) {
  std::string words(token);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

template <class Kind>
std::string text_of(const CountsBy<Kind>& counts) {
  std::string text;
  for (size_t i = 0; i < CountsBy<Kind>::kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if (counts[kind] == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(counts[kind]) + " " + in_words(token_of(kind).name);
  }
  return text;
}

std::string process_text(uint64_t count) {
  return count == 1 ? "1 process" : std::to_string(count) + " processes";
}

// "3 compiled graphs of inductor, 41 operators:"
std::string graphs_text(const Coverage& account) {
  std::string text = count_text(account.compiled, "compiled graph");
  const char* between = " of ";
  for (const auto& [compiler, count] : account.backends) {
    text += between + compiler;
    if (account.backends.size() > 1) text += " (" + std::to_string(count) + ")";
    between = ", ";
  }
  if (account.compiled_nodes > 0) text += ", " + count_text(account.compiled_nodes, "operator") + ":";
  return text;
}

std::string text_of(Gap gap, const Coverage& account) {
  switch (gap) {
    case Gap::kToolOff:
      return "the tool failed and was off";
    case Gap::kNothingSeen:
      return "no call was seen";
    case Gap::kMostUnjudged: {
      const uint64_t not_judged = account.not_judged.total();
      return std::to_string(not_judged) + " of " + count_text(account.judged + not_judged, "result") +
             " have no verdict (" + text_of(account.not_judged) + ")";
    }
    case Gap::kMostLost:
      return count_text(account.lost.total(), "call") + " left out (" + text_of(account.lost) + ")";
    case Gap::kNotOnAccelerator:
      return "no tensor was on " + account.accelerator;
    case Gap::kThreads:
      return count_text(account.threads, "thread") + " made " + count_text(account.thread_calls, "call") + " unseen";
    case Gap::kNativeCalls:
      return "C++ code made " + count_text(account.native_calls, "call") + " unseen (level aten sees them)";
    case Gap::kProcesses:
      return process_text(account.processes) + " of the program had no tool, or told nothing";
    case Gap::kChildren:
      return process_text(account.children_with_gaps) + " with the tool computed unseen";
    case Gap::kGraphs:
      return graphs_text(account) + " not looked into (--compiled nodes looks into those of torch.compile)";
    case Gap::kWideLimits:
      return std::to_string(account.wide_limits) + " of " + count_text(account.judged, "result") +
             " had limits wider than their values";
    case Gap::kCount:
      break;
  }
  return {};
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string looked_at(const Coverage& account) {
  std::vector<std::string> parts{count_text(account.seen, "call") + " seen"};
  const auto add = [&](uint64_t count, const std::string& text) {
    if (count > 0) parts.push_back(text);
  };
  const uint64_t not_judged = account.not_judged.total();
  add(account.judged + not_judged,
      count_text(account.judged, "result") + " judged, " + std::to_string(not_judged) + " not");
  for (const auto& [device, count] : account.devices) parts.push_back(std::to_string(count) + " on " + device);
  add(account.lost.total(), count_text(account.lost.total(), "call") + " left out");
  add(account.wide_limits, count_text(account.wide_limits, "limit") + " wider than the values");
  add(account.threads,
      count_text(account.thread_calls, "call") + " of " + count_text(account.threads, "thread") + " unseen");
  add(account.native_calls, count_text(account.native_calls, "call") + " of C++ code unseen");
  add(account.children, process_text(account.children) + " with the tool");
  add(account.children_wrong, "something wrong in " + process_text(account.children_wrong));
  add(account.processes, process_text(account.processes) + " without a tool");
  add(account.graphs, count_text(account.graphs, "compiled graph") + " as calls");
  add(account.compiled, count_text(account.compiled, "compiled graph") + " not");
  add(account.eager, count_text(account.eager, "compiled function") + " run eagerly");
  add(account.loaders, process_text(account.loaders) + " loading data");
  if (account.off) parts.emplace_back("the tool was off");
  return "Looked at: " + joined(parts, ", ");
}

void append_wrapped(const std::string& text, std::vector<std::string>* lines) {
  std::string line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      lines->push_back(std::move(line));
      line = " ";  // a continued line is indented by two blanks
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  lines->push_back(std::move(line));
}

}  // namespace

Token token_of(Verdict verdict) {
  return kVerdicts[static_cast<size_t>(verdict)];
}
Token token_of(Gap gap) {
  return kGaps[static_cast<size_t>(gap)];
}
Token token_of(Unjudged reason) {
  return kUnjudged[static_cast<size_t>(reason)];
}
Token token_of(Loss reason) {
  return kLosses[static_cast<size_t>(reason)];
}

std::vector<std::string> reasons(const Coverage& account) {
  std::vector<std::string> texts;
  for (const Gap gap : gaps(account)) texts.push_back(text_of(gap, account));
  return texts;
}

std::vector<std::string> lines(const Coverage& account) {
  std::vector<std::string> all;
  append_wrapped(looked_at(account), &all);
  if (const std::vector<std::string> why = reasons(account); !why.empty()) {
    append_wrapped("NOT JUDGED: " + joined(why, "; "), &all);
  }
  return all;
}

std::vector<std::string> lines_of_unseen(const Coverage& account) {
  std::vector<std::string> all;
  if (has_unseen(account)) append_wrapped(looked_at(account), &all);
  return all;
}

Value to_value(const Coverage& account) {
  std::vector<std::pair<Value, Value>> items;
  visit_fields(account, [&](const char* name, const auto& field, const char* /*help*/) {
    items.emplace_back(name, value_of_field(field));
  });
  return make_dict(std::move(items));
}

void set_fields(const Value& dict, Coverage& account) {
  const Dict* members = dict.get_if<Dict>();
  if (!members) throw Error("the account of a run is no dict");
  size_t known = 0;
  visit_fields(account, [&](const char* name, auto& field, const char* /*help*/) {
    const Value* value = find_key(dict, name);
    if (!value) return;
    ++known;
    if (!read_field(*value, field)) {
      throw Error("the account of a run: " + std::string(name) + " cannot be " + describe(*value));
    }
  });
  if (known < members->items->size()) throw Error("the account of a run has other fields: " + describe(dict));
}

RowDescription describe_coverage() {
  RowDescription row{"Coverage", "The calls that a run of a tool examined, and those that it did not.", {}};
  const Coverage account;
  visit_fields(account, [&](const char* name, const auto& field, const char* help) {
    row.columns.push_back({name, type_of_field(field), help});
  });
  return row;
}

}  // namespace op_tools

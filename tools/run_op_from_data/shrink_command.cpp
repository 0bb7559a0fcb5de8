#include "run_op_from_data/shrink_command.h"

#include <unistd.h>

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "run_op_from_data/engine.h"
#include "run_op_from_data/shrink.h"
#include "run_op_from_data/summary.h"
#include "tensor/exception_text.h"

namespace op_tools::replay {
namespace {

constexpr const char* kWords[] = {"fails", "passes", "cannot be run"};

// A line per attempt: its outcome as a number. A line without an outcome was the last of a process.
class Journal {
 public:
  explicit Journal(const std::string& folder) : path_(folder + "/shrink.journal") {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) known_.push_back(line);
    lines_.open(path_, std::ios::app);
    if (!lines_) throw Error(path_ + ": cannot be written; --shrink wants a folder that is there");
    if (!known_.empty() && known_.back() == "begun") lines_ << "died" << std::endl, known_.back() = "died";
    std::erase(known_, "begun");  // each has the line of its outcome behind it
  }

  // The earlier outcome of the attempt of this number; "" for a new attempt.
  std::string known(size_t number) const { return number < known_.size() ? known_[number] : ""; }
  void begin() { lines_ << "begun" << std::endl; }
  void end(Attempt outcome) { lines_ << static_cast<int>(outcome) << std::endl; }

 private:
  const std::string path_;
  std::vector<std::string> known_;
  std::ofstream lines_;
};

class Attempts {
 public:
  Attempts(const ReplayOptions& options, PythonCaller* caller)
      : options_(options), engine_(options, caller), journal_(options.shrink) {}

  Attempt make(SavedCall& call, const std::string& step);
  size_t count() const { return number_; }
  const std::string& why() const { return why_; }

 private:
  Attempt outcome_of(const SavedCall& call);
  bool fit(SavedCall& call);
  // Does it fail as the first attempt did?
  Attempt judged(const std::set<std::string>& kinds);

  const ReplayOptions& options_;
  Engine engine_;
  Journal journal_;
  size_t number_ = 0;
  bool crash_counts_ = false;
  std::set<std::string> kinds_;  // of differences of the saved call
  std::string why_;              // the last attempt could not be run
};

// Gradients of the sizes that the results have now. False: the call cannot be run on the CPU.
bool Attempts::fit(SavedCall& call) {
  const RunOutcome run = engine_.run_on_cpu(call);
  why_ = run.impossible + run.raised;
  if (!run.returned()) return false;
  const auto results = flatten_tensors(run.result);
  for (SavedBackward& pass : call.backward) {
    Values fitted;
    const Tensors gradients = gradient_list(pass.grad_outputs);
    for (size_t i = 0; i < gradients.size() && i < results.size(); ++i) {
      fitted.push_back(fitted_gradient(gradients[i], results[i].detach()));
    }
    pass.grad_outputs = make_list(std::move(fitted));
    const size_t inputs = flatten_tensors(call.args).size() + flatten_tensors(call.kwargs).size();
    pass.grad_inputs = make_list(Values(inputs));
  }
  return true;
}

Attempt Attempts::judged(const std::set<std::string>& kinds) {
  if (number_ == 1) kinds_ = kinds;
  for (const std::string& kind : kinds) {
    if (kinds_.contains(kind)) return Attempt::kFails;
  }
  return kinds.empty() ? Attempt::kPasses : Attempt::kInvalid;
}

Attempt Attempts::outcome_of(const SavedCall& call) {
  std::set<std::string> kinds;
  try {
    for (const Check& check : engine_.compare_with_cpu(call)) {
      if (check.judgement.verdict == Verdict::kDiffers) kinds.insert(check.judgement.kind);
    }
  } catch (const Error& error) {  // of ours: the call has no such form
    why_ = error.what();
    return Attempt::kInvalid;
  } catch (const std::exception& error) {  // of the device, in backward: the CPU did not raise
    why_ = exception_text(error);
    kinds.insert("raised");
  }
  return judged(kinds);
}

Attempt Attempts::make(SavedCall& call, const std::string& step) {
  const std::string known = journal_.known(number_++);
  Attempt outcome = Attempt::kInvalid;
  const char* word = nullptr;
  if (known == "died") {
    if (number_ == 1) crash_counts_ = true;
    outcome = crash_counts_ ? (fit(call) ? Attempt::kFails : Attempt::kInvalid) : Attempt::kInvalid;
    word = "ends or holds the process";
  } else if (!known.empty() && number_ > 1 && fit(call)) {
    outcome = known == "0" ? Attempt::kFails : known == "1" ? Attempt::kPasses : Attempt::kInvalid;
  } else if (known.empty() || number_ == 1) {
    if (known.empty()) journal_.begin();
    alarm(static_cast<unsigned>(options_.attempt_seconds));
    if (fit(call)) outcome = outcome_of(call);
    alarm(0);
    if (known.empty()) journal_.end(outcome);
  }
  if (known.empty() || word) {
    std::cerr << "shrink " << number_ << ": " << step << ", " << elements_of(call)
              << " elements: " << (word ? word : kWords[static_cast<int>(outcome)]) << std::endl;
  }
  return outcome;
}

SavedCall read_one(const ReplayOptions& options) {
  FoundCalls stored_calls = find_calls(options.paths[0]);
  if (options.paths.size() != 1 || stored_calls.calls.size() != 1) {
    throw Error("--shrink: " + options.paths[0] + " has " + std::to_string(stored_calls.calls.size()) +
                " calls; give the folder of a single call");
  }
  SavedCall call = read_call(*stored_calls.calls[0]);
  refuse_unsupported(call);
  if (call.from_ditorch) throw Error("--shrink: calls that ditorch saved cannot be made smaller");
  if (options.only_run_forward) call.backward.clear();
  call.backward.resize(std::min<size_t>(call.backward.size(), 1));
  call.output.reset();
  call.meta.outputs.clear();
  call.meta_text.clear();
  return call;
}

}  // namespace

int shrink_command(const ReplayOptions& options, PythonCaller* caller) {
  SavedCall call = read_one(options);
  Attempts attempts(options, caller);
  const Attempt first = attempts.make(call, "as it was saved");
  if (first != Attempt::kFails) {
    std::cerr << "run_op_from_data: the call " << (first == Attempt::kPasses ? "is right" : "cannot be run: ")
              << (first == Attempt::kPasses ? "" : attempts.why()) << "\n";
    return first == Attempt::kPasses ? kAgrees : kIncomplete;
  }
  const int64_t before = elements_of(call);
  const TryCall attempt = [&](SavedCall& candidate, const std::string& step) { return attempts.make(candidate, step); };
  const Shrunk shrunk = shrink(std::move(call), attempt, static_cast<size_t>(options.attempts));
  const std::string folder = write_call(*CallStore::in_folder(options.shrink), shrunk.call);
  nlohmann::json limits = nlohmann::json::array();
  for (const SizeLimit& limit : shrunk.limits) {
    limits.push_back({{"what", limit.size}, {"fails", limit.fails}, {"passes", limit.passes}});
  }
  const nlohmann::json report{{"folder", folder},          {"attempts", attempts.count()},
                              {"elements_before", before}, {"elements", elements_of(shrunk.call)},
                              {"steps", shrunk.steps},     {"limits", limits}};
  const std::string text = report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (options.json.empty()) {
    std::cout << text << "\n";
  } else if (!(std::ofstream(options.json) << text << std::endl)) {
    throw FileError("--json " + options.json + ": cannot be written");
  }
  return kDiffers;
}

}  // namespace op_tools::replay

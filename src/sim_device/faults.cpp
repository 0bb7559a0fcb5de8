#include <c10/core/Allocator.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/log.h"
#include "base/read_options.h"
#include "sim_device/fault_state.h"
#include "sim_device/faults.h"
#include "sim_device/kernels.h"
#include "sim_device/memory.h"
#include "sim_device/values.h"

namespace op_tools::sim_device {
namespace {

constexpr size_t kMostLogged = 10'000;
constexpr const char* kRoundingVariable = "OP_TOOLS_SIM_ROUNDING";
constexpr const char* kFaultsVariable = "OP_TOOLS_SIM_FAULTS";
constexpr const char* kLatencyVariable = "OP_TOOLS_SIM_LATENCY";

constexpr std::array<KindFacts, 32> kKinds{{
    {"scale", Kind::kScale, 1.01},
    {"element", Kind::kElement, 2},
    {"low_precision", Kind::kLowPrecision, 0},
    {"swap_rows", Kind::kSwapRows, 0},
    {"nan", Kind::kNan, 0},
    {"inf", Kind::kInf, 0},
    {"mutate_input", Kind::kMutateInput, 2},
    {"noncontiguous", Kind::kNoncontiguous, 2},
    {"above_size", Kind::kAboveSize, 2},
    {"lost_write", Kind::kLostWrite, 0},
    {"missing", Kind::kMissing, 0},
    {"strides", Kind::kStrides, 0},
    {"latency", Kind::kLatency, 0},
    {"leak", Kind::kLeak, 0},
    {"exception", Kind::kException, 0},
    {"nondeterministic", Kind::kNondeterministic, 1.001},
    {"crash", Kind::kCrash, 0},
    {"hang", Kind::kHang, 0},
    {"out_of_bounds", Kind::kOutOfBounds, 0},
    {"late_write", Kind::kLateWrite, 0},
    {"wrong_generator", Kind::kWrongGenerator, 0},
    {"batch_size", Kind::kBatchSize, 1.00001},
    {"batch_position", Kind::kBatchPosition, 1.00001},
    {"misaligned", Kind::kMisaligned, 1.00001},
    {"every_second", Kind::kEverySecond, 1.00001},
    {"bit_flip", Kind::kBitFlip, 0},
    {"neighbour", Kind::kNeighbour, 1.00001},
    {"other_stream", Kind::kOtherStream, 1.00001},
    {"gaps", Kind::kGaps, 1.00001},
    {"sequence_length", Kind::kSequenceLength, 1.00001},
    {"row_length", Kind::kRowLength, 1.00001},
    {"token_position", Kind::kTokenPosition, 1.00001},
}};

const KindFacts& facts_of(const std::string& kind) {
  for (const KindFacts& facts : kKinds) {
    if (facts.name == kind) return facts;
  }
  std::string known;
  for (const KindFacts& facts : kKinds) known += (known.empty() ? "" : ", ") + std::string(facts.name);
  throw Error("fault: '" + kind + "' is no kind; give one of " + known);
}

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

void check(const FaultOptions& options, const KindFacts& facts) {
  const auto refuse = [&](const char* option, const std::string& value, const char* allowed) {
    throw Error("fault " + options.kind + ": " + std::string(option) + "=" + value + " is not allowed; " + allowed);
  };
  if (!(options.probability >= 0 && options.probability <= 1)) {
    refuse("probability", number(options.probability), "give a number from 0 to 1");
  }
  if (options.calls && (options.calls->first < 0 || options.calls->step < 1)) {
    refuse("call", std::to_string(options.calls->first), "calls are counted from 0, in steps of at least 1");
  }
  if (options.scale) {
    if (facts.scale == 0) refuse("scale", number(*options.scale), "the kind has no scale");
    if (!std::isfinite(*options.scale) || *options.scale == 1) {
      refuse("scale", number(*options.scale), "give a finite number that is not 1: results are multiplied with it");
    }
  }
  const bool sized = facts.kind == Kind::kAboveSize, timed = facts.kind == Kind::kLatency;
  if (options.size.has_value() != sized) {
    refuse("size", options.size ? std::to_string(*options.size) : "(none)",
           sized ? "give the number of elements up to which results are right" : "only above_size has a size");
  }
  if (options.size && *options.size < 0) refuse("size", std::to_string(*options.size), "give a number from 0 on");
  if (options.microseconds.has_value() != timed) {
    refuse("microseconds", options.microseconds ? number(*options.microseconds) : "(none)",
           timed ? "say how much longer the operator takes" : "only latency has a time");
  }
  if (options.microseconds && !(*options.microseconds >= 0 && *options.microseconds <= 1e9)) {
    refuse("microseconds", number(*options.microseconds), "give a number from 0 to 1e9");
  }
}

std::chrono::nanoseconds nanoseconds(double microseconds) {
  return std::chrono::nanoseconds(std::llround(microseconds * 1000));
}

// A name that only an operator made of others has never reaches a device: an error at once, not after a night.
void check_that_names_reach_the_device(const Matcher& matcher, const std::string& source, const std::string& ops) {
  const DeviceNames names = names_that_reach_the_device();
  if (std::any_of(names.reach.begin(), names.reach.end(), std::cref(matcher))) return;
  const auto composite = std::find_if(names.composite.begin(), names.composite.end(), std::cref(matcher));
  if (composite != names.composite.end()) {
    throw Error(
        source + ": ops='" + ops + "' names only operators that never reach a device, as " + *composite +
        ": torch makes them of others, in the way that docs/sim_device.md shows (linear: mm or addmm, conv2d: " +
        "convolution, softmax: _softmax); name those");
  }
  log::warn(source + ": ops='" + ops + "' matches no operator that torch knows so far");
}

struct Leaks {
  std::mutex mutex;
  std::vector<c10::DataPtr> memory;
};

Leaks& leaks() {
  static auto* leaks = new Leaks;  // NOLINT: as planted_faults()
  return *leaks;
}

// --- Strings of the environment

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

template <class T>
T parse(const std::string& item, const std::string& text) {
  if constexpr (std::is_floating_point_v<T>) {
    if (const std::optional<double> value = number_of(text)) return *value;
  } else {
    T value{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc() && end == text.data() + text.size()) return value;
  }
  throw Error(item + ": '" + text + "' is no number");
}

// "3" or "10-20": the first and the last call.
CallRange parse_calls(const std::string& item, const std::string& text) {
  const size_t dash = text.find('-');
  const auto first = parse<int64_t>(item, text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse<int64_t>(item, text.substr(dash + 1));
  return {first, last + 1, 1};
}

// "kind:ops=mm,addmm,probability=0.5": a piece without a '=' belongs to the value before it.
FaultOptions parse_fault(const std::string& text, const std::string& item) {
  FaultOptions options;
  const size_t colon = std::min(text.find(':'), text.size());
  options.kind = trimmed(std::string_view(text).substr(0, colon));
  std::vector<std::pair<std::string, std::string>> pairs;
  if (colon < text.size()) {
    for (const std::string& piece : split(std::string_view(text).substr(colon + 1), ',')) {
      const size_t equals = piece.find('=');
      if (equals != std::string::npos) {
        pairs.emplace_back(trimmed(piece.substr(0, equals)), trimmed(piece.substr(equals + 1)));
      } else if (!pairs.empty()) {
        pairs.back().second += "," + piece;
      } else if (!piece.empty()) {
        throw Error(item + ": '" + piece + "' is no option; give option=value");
      }
    }
  }
  for (const auto& [option, value] : pairs) {
    if (option == "ops") {
      options.ops = value;
    } else if (option == "call") {
      options.calls = parse_calls(item, value);
    } else if (option == "probability") {
      options.probability = parse<double>(item, value);
    } else if (option == "seed") {
      options.seed = parse<uint64_t>(item, value);
    } else if (option == "scale") {
      options.scale = parse<double>(item, value);
    } else if (option == "size") {
      options.size = parse<int64_t>(item, value);
    } else if (option == "microseconds") {
      options.microseconds = parse<double>(item, value);
    } else {
      throw Error(item + ": '" + option +
                  "' is no option; give ops, call, probability, seed, scale, size or microseconds");
    }
  }
  return options;
}

}  // namespace

// --- Fault

Fault::State::State(FaultOptions its_options, const std::string& source)
    : options(std::move(its_options)),
      facts(facts_of(options.kind)),
      matches(options.ops, source),
      random(options.seed) {
  check(options, facts);
  check_that_names_reach_the_device(matches, "fault " + options.kind, options.ops);
}

std::optional<std::pair<int64_t, uint64_t>> Fault::State::next_call() {
  const std::lock_guard lock(mutex);
  const int64_t call = calls++;
  // Two draws for each call, whether or not it is chosen: the faults of call 7 do not depend on `calls`.
  const uint64_t draw = random();
  const bool drawn = static_cast<double>(random() >> 11) * 0x1p-53 < options.probability;
  if (options.calls) {
    const CallRange& range = *options.calls;
    if (call < range.first || call >= range.last || (call - range.first) % range.step != 0) return std::nullopt;
  }
  return drawn ? std::optional(std::pair(call, draw)) : std::nullopt;
}

void Fault::State::note(const std::string& op, int64_t call) {
  const std::lock_guard lock(mutex);
  ++hits;
  if (log.size() < kMostLogged) log.emplace_back(op, call);
}

Fault::Fault(FaultOptions options, bool started) : state_(std::make_shared<State>(std::move(options), "ops=")) {
  if (started) start();
}

Fault::~Fault() {
  stop();
}

void Fault::start() {
  planted_faults().add(state_);
}

void Fault::stop() {
  if (planted_faults().remove(state_) && matched() == 0) {
    op_tools::log::warn("fault " + state_->options.kind + ": ops='" + state_->options.ops +
                        "' matched no operator that ran on the device");
  }
}

int64_t Fault::matched() const {
  const std::lock_guard lock(state_->mutex);
  return state_->calls;
}

int64_t Fault::hits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->hits;
}

std::vector<std::pair<std::string, int64_t>> Fault::log() const {
  const std::lock_guard lock(state_->mutex);
  return state_->log;
}

std::vector<std::string> fault_kinds() {
  std::vector<std::string> names;
  for (const KindFacts& facts : kKinds) names.emplace_back(facts.name);
  return names;
}

void faults_clear() {
  planted_faults().clear();
  late_writes().arrive();
  const std::lock_guard lock(leaks().mutex);
  leaks().memory.clear();
}

// Never destroyed: worker threads and torch's statics run longer than ours.
Planted<Fault::State>& planted_faults() {
  static auto* all = new Planted<Fault::State>;  // NOLINT
  return *all;
}

Planted<const Latency::State>& planted_latencies() {
  static auto* all = new Planted<const Latency::State>;  // NOLINT
  return *all;
}

void LateWrites::add(at::Tensor result, at::Tensor right) {
  const std::lock_guard lock(mutex_);
  waiting_.emplace_back(std::move(result), std::move(right));
  if (waiting_.size() <= kMost) return;
  values::replace(waiting_.front().first, waiting_.front().second);
  waiting_.pop_front();
}

void LateWrites::arrive() {
  const std::lock_guard lock(mutex_);
  for (const auto& [result, right] : waiting_) values::replace(result, right);
  waiting_.clear();
}

LateWrites& late_writes() {
  static auto* all = new LateWrites;  // NOLINT: as planted_faults()
  return *all;
}

bool leak(size_t bytes) {
  if (bytes == 0) return false;
  c10::DataPtr memory = device_allocator()->allocate(bytes);
  const std::lock_guard lock(leaks().mutex);
  leaks().memory.push_back(std::move(memory));
  return true;
}

// --- Latency

namespace {

std::shared_ptr<const Latency::State> latency_state(const std::vector<std::pair<std::string, double>>& microseconds,
                                                    const std::string& source) {
  auto state = std::make_shared<Latency::State>();
  for (const auto& [ops, time] : microseconds) {
    if (ops.empty() || !(time >= 0 && time <= 1e9)) {
      throw Error(source + ": '" + ops + "': " + number(time) +
                  " is not allowed; give an operator expression and microseconds from 0 to 1e9");
    }
    auto matcher = std::make_unique<Matcher>(ops, source);
    check_that_names_reach_the_device(*matcher, source, ops);
    state->rules.push_back({std::move(matcher), nanoseconds(time)});
  }
  return state;
}

}  // namespace

Latency::Latency(const std::vector<std::pair<std::string, double>>& microseconds, bool started)
    : state_(latency_state(microseconds, "latency")) {
  if (started) start();
}

Latency::~Latency() {
  stop();
}

void Latency::start() {
  planted_latencies().add(state_);
}

void Latency::stop() {
  planted_latencies().remove(state_);
}

std::chrono::nanoseconds latency_of(const std::string& op) {
  if (!planted_latencies().any()) return {};
  const auto list = planted_latencies().list();
  for (auto latency = list->rbegin(); latency != list->rend(); ++latency) {
    for (const auto& rule : (*latency)->rules) {
      if ((*rule.matches)(op)) return rule.time;
    }
  }
  return {};
}

// --- The environment

void plant_from_environment() {
  std::vector<std::shared_ptr<Fault::State>> faults;
  for (const std::string& text : split(environment(kFaultsVariable).value_or(""), ';')) {
    if (text.empty()) continue;
    const std::string item = std::string(kFaultsVariable) + ": '" + text + "'";
    try {
      faults.push_back(std::make_shared<Fault::State>(parse_fault(text, "it"), "ops"));
    } catch (const Error& error) {
      throw Error(item + ": " + error.what());
    }
  }
  std::vector<std::pair<std::string, double>> latencies;
  for (const std::string& text : split(environment(kLatencyVariable).value_or(""), ';')) {
    if (text.empty()) continue;
    const std::string item = std::string(kLatencyVariable) + ": '" + text + "'";
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos) throw Error(item + ": give operator=microseconds, several with ';' between them");
    latencies.emplace_back(trimmed(text.substr(0, equals)),
                           parse<double>(item, std::string(trimmed(text.substr(equals + 1)))));
  }
  const auto latency = latency_state(latencies, kLatencyVariable);  // all is well before anything is planted
  const std::string rounding = environment(kRoundingVariable).value_or("");
  if (!rounding.empty() && rounding != "0" && rounding != "1") {
    throw Error(std::string(kRoundingVariable) + ": '" + rounding + "' is not allowed; give 1 or 0");
  }
  if (!rounding.empty()) set_rounding(rounding == "1");
  for (const auto& fault : faults) planted_faults().add(fault);
  if (!latency->rules.empty()) planted_latencies().add(latency);
}

}  // namespace op_tools::sim_device

#include "run_op_from_data/program_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "pth/pth.h"
#include "tensor/autocast.h"

namespace op_tools::replay {
namespace {

const at::Generator& default_generator(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

}  // namespace

StateGate::StateGate() {
  original_.default_dtype = c10::get_default_dtype_as_scalartype();
  original_.deterministic = at::globalContext().deterministicAlgorithms();
  original_.float32_matmul_precision = at::globalContext().float32MatmulPrecision();
  original_.cudnn_tf32 = at::globalContext().allowTF32CuDNN();
  current_ = original_;
}

StateGate::~StateGate() {
  apply(original_);
}

void StateGate::apply(const ProcessState& wanted) {
  if (wanted == current_) return;
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(*wanted.default_dtype));
  at::globalContext().setDeterministicAlgorithms(*wanted.deterministic, /*warn_only=*/false);
  at::globalContext().setFloat32MatmulPrecision(precision_name(*wanted.float32_matmul_precision));
  at::globalContext().setAllowTF32CuDNN(*wanted.cudnn_tf32);
  current_ = wanted;
}

StateGate::Pass::Pass(StateGate& gate, const ProcessState& wanted, bool alone) : together_(gate.mutex_) {
  ProcessState complete = gate.original_;
  if (wanted.default_dtype) complete.default_dtype = wanted.default_dtype;
  if (wanted.deterministic) complete.deterministic = wanted.deterministic;
  if (wanted.float32_matmul_precision) complete.float32_matmul_precision = wanted.float32_matmul_precision;
  if (wanted.cudnn_tf32) complete.cudnn_tf32 = wanted.cudnn_tf32;
  if (!alone && gate.current_ == complete) return;
  together_.unlock();
  alone_ = std::unique_lock(gate.mutex_);
  gate.apply(complete);
}

struct ThreadState::Saved {
  explicit Saved(const ProgramState& state) : autocast(state.autocast, state.autocast_cache) {
    if (state.inference_mode) inference_mode.emplace(true);
  }
  const bool grad_mode = c10::GradMode::is_enabled();
  const AutocastState autocast;
  std::optional<c10::InferenceMode> inference_mode;
};

ThreadState::ThreadState(const ProgramState& state) : saved_(std::make_unique<Saved>(state)) {
  c10::GradMode::set_enabled(state.grad_enabled.value_or(true) && !state.inference_mode);
}

ThreadState::~ThreadState() {
  saved_->inference_mode.reset();
  c10::GradMode::set_enabled(saved_->grad_mode);
}

NumThreads::NumThreads(std::optional<int> wanted) : original_(at::get_num_threads()) {
  if (wanted && *wanted != original_) at::set_num_threads(*wanted);
}

NumThreads::~NumThreads() {
  if (at::get_num_threads() != original_) at::set_num_threads(original_);
}

std::set<c10::DeviceType> restore_random_state(const Value& rng, c10::Device device) {
  const auto* states = rng.get_if<Dict>();
  if (!states) throw Error("'rng' is " + describe(rng) + ", expected {device: state}");
  std::set<c10::DeviceType> restored;
  for (const auto& [key, value] : *states->items) {
    const auto* name = key.get_if<std::string>();
    const auto* state = value.get_if<at::Tensor>();
    if (!name || !state) throw Error("'rng' is " + describe(rng) + ", expected {device: state}");
    const c10::Device recorded = recorded_device(*name);
    if (!recorded.is_cpu() && recorded.type() != device.type()) continue;
    at::Generator generator = default_generator(recorded.is_cpu() ? recorded : device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
    restored.insert(recorded.type());
  }
  return restored;
}

void seed_generators(uint64_t seed, c10::Device device) {
  const auto set = [&](at::Generator generator) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  };
  set(default_generator(c10::kCPU));
  if (!device.is_cpu()) set(default_generator(device));
}

}  // namespace op_tools::replay

// Collectives of torch.distributed on tensors of the device: the process group's backend for the CPU (gloo) runs them
// on the host storages behind the tensors. The device has done its work when a collective starts; a program waits for
// the collective's Work before it goes on, as with any device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "sim_device/aliases.h"
#include "sim_device/kernels.h"
#include "sim_device/scoped_kernel.h"
#include "sim_device/sim_device.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace op_tools::sim_device {
namespace {

using torch::jit::Stack;

// A collective on the CPU whose results are the program's tensors.
class DeviceWork : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> results)
      : c10d::Work(-1, work->retrieveOpType()), work_(std::move(work)), results_(std::move(results)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return work_->wait(timeout); }
  void blockCurrentStream() { work_->wait(); }  // NOLINT: overrides, since torch 2.8
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto results = results_;
    return work_->getFuture()->then(
        [results](c10::ivalue::Future& done) -> c10::IValue {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          return results;
        },
        c10::ListType::create(c10::TensorType::get()));
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return work_->getFutureResult(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> results_;
};

void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const ScopedKernel scope;
  synchronize();
  Aliases aliases;
  const size_t count = op.schema().arguments().size();
  Stack taken;
  std::vector<at::Tensor> results;  // the first argument's, which every collective writes or returns
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, count);
    if (i == 0) results = tensors_in(value);
    taken.push_back(aliases.to_cpu(value));
  }
  op.callBoxed(taken);
  torch::jit::drop(*stack, count);
  for (const c10::IValue& value : taken) {
    if (value.isCustomClass()) {
      const c10::intrusive_ptr<c10d::Work> work =
          c10::make_intrusive<DeviceWork>(value.toCustomClass<c10d::Work>(), results);
      stack->emplace_back(work);
    } else {
      stack->push_back(aliases.to_device(value));
    }
  }
}

// torch has a kernel for each of them, which asks the process group for a backend of the device's own.
class NoWarnings : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void register_collectives() {
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "c10d") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    register_kernel(name.name.c_str(), c10::DispatchKey::PrivateUse1,
                    c10::KernelFunction::makeFromBoxedFunction<&run_collective>());
  }
}

}  // namespace op_tools::sim_device
#else
namespace op_tools::sim_device {
void register_collectives() {}  // this torch was built without torch.distributed
}  // namespace op_tools::sim_device
#endif

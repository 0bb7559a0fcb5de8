// A hook of your own in a C++ program without Python: counts the operators of a small training step and the bytes
// that they return, while OpCapture saves the matrix products of the same step.
//
//   observe_ops [FOLDER]     the captured calls go to FOLDER/op_capture_result (default: the working directory)
#include <op_tools.h>

#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>

#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace {

// One object sees every call, from whatever thread: data of a call would go into the state that before()
// returns; sums need a lock.
class CountOps final : public op_tools::Hook {
 public:
  struct Count {
    uint64_t calls = 0;
    uint64_t bytes = 0;
  };

  std::string_view name() const override { return "CountOps"; }

  void after(op_tools::OpCall& call, op_tools::HookState*) override {
    uint64_t bytes = 0;
    op_tools::for_each_tensor(call.result(), [&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });
    std::lock_guard<std::mutex> lock(mutex_);
    Count& count = counts_[std::string(call.name)];
    ++count.calls;
    count.bytes += bytes;
  }

  void print() const {
    for (const auto& [op, count] : counts_) {
      std::cout << std::left << std::setw(28) << op << std::right << std::setw(4) << count.calls << " calls "
                << std::setw(8) << count.bytes << " bytes\n";
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Count> counts_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    at::Tensor weight = at::rand({16, 4});
    weight.set_requires_grad(true);
    const auto counter = std::make_shared<CountOps>();

    op_tools::HookScope scope(counter, op_tools::resolve(op_tools::HookOptions()).scope);
    op_tools::CaptureOptions options;
    options.ops = "mm";
    if (argc > 1) options.output_dir = argv[1];
    {
      const op_tools::OpCapture capture(options);
      scope.enter();
      at::relu(at::mm(at::rand({8, 16}), weight)).sum().backward();
      scope.leave();
    }
    counter->print();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "observe_ops: " << error.what() << "\n";
    return 1;
  }
}

// A libtorch program outside the project, without Python: embeds OpCapture and a hook of its own.
//   consumer FILTER FOLDER
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <op_tools/op_tools.h>

#include <iostream>
#include <memory>
#include <string>

namespace {

class Counting final : public op_tools::Hook {
 public:
  std::string_view name() const override { return "Counting"; }
  void after(op_tools::OpCall&, op_tools::HookState*) override { ++calls; }
  int calls = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const op_tools::OpFilter filter(argc > 1 ? argv[1] : "", "", "the argument", "");
    std::cout << "op_tools " << op_tools::version() << ", built with torch " << op_tools::built_with_torch() << "\n"
              << "aten::add.Tensor " << (filter.admits("aten::add.Tensor") ? "admitted" : "left out") << "\n";
    if (argc < 3) return 0;
    const auto counting = std::make_shared<Counting>();
    op_tools::HookScope scope(counting, op_tools::resolve(op_tools::HookOptions()).scope);
    op_tools::CaptureOptions options;
    options.ops = "mm";
    options.output_dir = argv[2];
    const at::Tensor x = at::ones({2, 2});
    {
      const op_tools::OpCapture capture(options);
      op_tools::BlackBoxOptions box;
      op_tools::MemoryOptions memory;
      box.output_dir = std::string(argv[2]) + "_others";
      memory.output_dir = std::string(argv[2]) + "_others";
      const op_tools::OpBlackBox last_calls(box);
      const op_tools::OpMemoryCheck memory_check(memory);
      scope.enter();
      at::mm(x, x);
      scope.leave();
    }
    std::cout << counting->calls << " calls\n";
    return 0;
  } catch (const op_tools::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

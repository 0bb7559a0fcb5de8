#include <op_tools/op_tools.h>

#include <iostream>

int main(int argc, char** argv) {
  try {
    const op_tools::OpFilter filter(argc > 1 ? argv[1] : "", "", "the argument", "");
    std::cout << "op_tools " << op_tools::version() << ", built with torch "
              << op_tools::built_with_torch() << "\n"
              << "aten::add.Tensor "
              << (filter.admits("aten::add.Tensor") ? "admitted" : "left out") << "\n";
    return 0;
  } catch (const op_tools::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

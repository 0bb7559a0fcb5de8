// The bytes of a pickle of protocol 2 while they are written: opcodes, numbers, strings and the memo. For the writer of
// .pth files; one thread. All functions throw Error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace op_tools {

class PickleBytes {
 public:
  PickleBytes();

  void op(char op) { out_.push_back(op); }
  void ops(const char* ops) { out_ += ops; }
  void number(int64_t value);
  void number(double value);
  void text(std::string_view text);
  // module.name, e.g. "torch", "float32".
  void global(std::string_view module, std::string_view name);
  // Globals and strings that come with every tensor: written once, then referred to. They are known by the address of
  // `name` and `text`, so each has to be a single constant.
  void known_global(std::string_view module, std::string_view name);
  void known_text(std::string_view text);

  uint32_t memoize();          // the top of the stack; returns its number
  void recall(uint32_t memo);  // puts it there again

  std::string take() { return std::move(out_); }

 private:
  template <class T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  bool recall_known(std::string_view constant);

  std::string out_;
  std::vector<std::pair<const char*, uint32_t>> known_;  // few, so a list beats a map
  uint32_t memo_count_ = 0;
};

}  // namespace op_tools

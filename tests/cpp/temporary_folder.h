// A folder of its own for a test, gone at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace op_tools::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "op_tools_test_").string() + std::string(6, 'X');
    if (!::mkdtemp(path_.data())) throw std::runtime_error("no temporary folder can be made: " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // a test that failed may have left anything
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace op_tools::test

#include "base/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "base/disk_time.h"
#include "base/error.h"

namespace op_tools {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(path + ": cannot be created: " + std::strerror(error));
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d--%H-%M", &local)};
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code no_folder;
  const std::filesystem::path folder = std::filesystem::current_path(no_folder);
  return no_folder ? path : path == "." ? folder.string() : (folder / path).string();
}

std::string shown_path(const std::string& path) {
  std::error_code no_folder;
  const std::string folder = std::filesystem::current_path(no_folder).string() + "/";
  return !no_folder && path.starts_with(folder) && path != folder ? path.substr(folder.size()) : path;
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail(path, errno);
}

void make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    make_folder(path.substr(0, slash));
  make_folder(path);
}

bool make_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return false;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  return descriptor >= 0 && ::close(descriptor) == 0;
}

std::string claim_run_folder(const std::string& output_dir, std::string_view name, int64_t rank) {
  std::string parent = output_dir.empty() || output_dir == "." ? "" : output_dir + "/";
  parent.append(name).append("/").append(std::to_string(rank));
  return in_time(parent, disk_silence(), [parent] {
    make_folders(parent);
    const std::string base = parent + "/" + timestamp();
    std::string folder = base;
    // mkdir decides which of several processes gets a name.
    for (int i = 2; ::mkdir(folder.c_str(), 0777) != 0; ++i) {
      if (errno != EEXIST) fail(folder, errno);
      folder = base + "-" + std::to_string(i);
    }
    return folder;
  });
}

}  // namespace op_tools

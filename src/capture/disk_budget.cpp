#include "capture/disk_budget.h"

#include <sys/statvfs.h>

#include <algorithm>

#include "base/text_table.h"

namespace op_tools {
namespace {

constexpr uint64_t kMostKeptFree = 5'000'000'000;
constexpr uint64_t kAskEvery = 16'000'000;
// Bytes of names, headers and meta data, which a record's size leaves out: many small records add up.
constexpr uint64_t kOfRecord = 64'000;

}  // namespace

std::string DiskBudget::refusal(const std::string& folder, uint64_t written, uint64_t size) {
  if (written >= most_ || size > most_ - written) {
    return "max_gb=: " + bytes_text(most_) + " would be exceeded";
  }
  const uint64_t asks = size + kOfRecord;
  if (unasked_ < kAskEvery && asks < kAskEvery - unasked_) {
    unasked_ += asks;
    return {};
  }
  unasked_ = 0;
  return refusal_of_disk(folder, size);
}

std::string DiskBudget::refusal_of_disk(const std::string& folder, uint64_t size) const {
  struct statvfs disk = {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};  // a folder that is gone: writing says so
  if (disk.f_blocks == 0) return {};                     // mounts of stores without a size, as object stores
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize, whole = uint64_t{disk.f_blocks} * disk.f_frsize;
  const uint64_t floor = least_free_.value_or(std::min(kMostKeptFree, whole / 10));
  if (free >= floor && size <= free - floor) return {};
  return bytes_text(free) + " are free on the disk of " + folder + ", and " + bytes_text(floor) +
         " are to stay free (min_free_gb=)";
}

}  // namespace op_tools

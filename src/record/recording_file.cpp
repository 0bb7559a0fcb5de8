#include "record/recording_file.h"

#define XXH_INLINE_ALL
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "record/recording_blocks.h"
#include "report/json_writer.h"

namespace op_tools {

using namespace recording_blocks;  // NOLINT: the format of this file

namespace {

template <class T>
void put(std::string& to, const T* items, size_t count) {
  if (count > 0) to.append(reinterpret_cast<const char*>(items), count * sizeof(T));
}

void put_rows(std::string& to, const Recording& rows) {
  const auto count = [](size_t size) { return static_cast<uint32_t>(size); };
  const RowCounts counts{count(rows.strings.size()), count(rows.lists.size()), count(rows.values.size()),
                         count(rows.uses.size()),    count(rows.calls.size()), count(rows.rows.size())};
  put(to, &counts, 1);
  for (const std::string& text : rows.strings) {
    const uint32_t length = count(text.size());
    put(to, &length, 1);
  }
  for (const std::vector<int64_t>& list : rows.lists) {
    const uint32_t length = count(list.size());
    put(to, &length, 1);
  }
  put(to, rows.values.data(), rows.values.size());
  put(to, rows.uses.data(), rows.uses.size());
  put(to, rows.calls.data(), rows.calls.size());
  put(to, rows.rows.data(), rows.rows.size());
  put(to, rows.prints.data(), rows.prints.size());
  for (const std::vector<int64_t>& list : rows.lists) put(to, list.data(), list.size());
  for (const std::string& text : rows.strings) to += text;
}

}  // namespace

uint64_t recording_blocks::checksum(const BlockHead& head, std::string_view payload) {
  const uint64_t seed = XXH3_64bits(&head, offsetof(BlockHead, checksum));
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

RecordingFile::RecordingFile(std::string path, const Value& header, std::chrono::duration<double> time_limit)
    : file_(std::move(path), time_limit) {
  block_ = kMagic;
  try {
    add_block(kHeader, [&](std::string& to) { to += json_text(header); });
  } catch (...) {
    ::unlink(file_.path().c_str());
    throw;
  }
}

void RecordingFile::append(const Recording& rows) {
  add_block(kRows, [&](std::string& to) { put_rows(to, rows); });
}

void RecordingFile::note(const Value& facts) {
  add_block(kNote, [&](std::string& to) { to += json_text(facts); });
}

void RecordingFile::end() {
  add_block(kEnd, [](std::string&) {});
  flush();
}

template <class PutPayload>
void RecordingFile::add_block(uint32_t kind, const PutPayload& put_payload) {
  BlockHead head;
  const size_t at = block_.size();
  put(block_, &head, 1);
  put_payload(block_);
  const std::string_view payload = std::string_view(block_).substr(at + sizeof head);
  head.kind = kind;
  head.bytes = payload.size();
  head.checksum = checksum(head, payload);
  std::memcpy(block_.data() + at, &head, sizeof head);
  try {
    file_.append(block_);
  } catch (...) {
    block_.clear();
    throw;
  }
  block_.clear();
}

void write_recording(const Recording& recording, const std::string& path) {
  RecordingFile file(path, recording.header);
  Recording part;
  if (recording.strings.size() > 1) part.strings.assign(recording.strings.begin() + 1, recording.strings.end());
  if (recording.lists.size() > 1) part.lists.assign(recording.lists.begin() + 1, recording.lists.end());
  part.values = recording.values;
  part.uses = recording.uses;
  part.calls = recording.calls;
  part.rows = recording.rows;
  part.prints = recording.prints;
  file.append(part);
  recording.complete ? file.end() : file.flush();
}

}  // namespace op_tools

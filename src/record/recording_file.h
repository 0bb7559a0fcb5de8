// A recording's file: "<folder>/rank<R>-<pid>.oprec". Blocks of rows that are appended as the program runs, each with
// its length and a checksum: whatever the end of the process, blocks written before it can be read.
//
//   "OPREC03\n", then blocks: kind (u32), "BLCK" (u32), length of contents (u64), XXH3 of kind, length, contents (u64)
//   kind 1, the first: the header, as JSON
//   kind 2: new strings, lists of sizes, values, uses and calls (recording.h); numbers count from the start
//   kind 3: the tool was stopped; there may be backward passes after it
//   kind 4: more of the header, as JSON, which was not known at the begin
//
// All integers are little-endian. A value's projections are sums of its elements with the signs of
// tensor/sign_pattern.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/appended_file.h"
#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// Writes a recording. Rows given to append() are the system's when it returns, unless the disk is slow (AppendedFile):
// a process that is killed loses none of them. One thread at a time.
class OP_TOOLS_API RecordingFile {
 public:
  // Makes the file. Throws Error, with path and system message, as all methods do.
  RecordingFile(std::string path, const Value& header,
                std::chrono::duration<double> time_limit = std::chrono::minutes(5));

  // Rows that are new: the numbers in them count from the file's begin (string 0 and list 0 are there from the start).
  // A block that cannot be written as a whole is taken back: the file stays readable.
  void append(const Recording& rows);
  void note(const Value& facts);  // a Dict: the reader adds it to the header
  void end();                     // the recording is complete, unless more is appended
  void flush() { file_.flush(); }
  bool is_full() const { return file_.is_full(); }  // a block had no room
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }

 private:
  template <class PutPayload>
  void add_block(uint32_t kind, const PutPayload& put_payload);

  AppendedFile file_;
  std::string block_;  // that is being put together; its memory is reused for the next
};

// A whole recording in memory as a file: of other tools' dumps, and for tests.
OP_TOOLS_API void write_recording(const Recording& recording, const std::string& path);

// The whole file, also while it is written; or lines of JSON (json_lines.h). Throws Error, with path and offset, when
// it is no recording; a damaged or unfinished file is read up to the damage (Recording::complete).
OP_TOOLS_API Recording read_recording(const std::string& path);

// The rows of a file from a block on to before byte `end`, without prints of rows: their numbers are those in the whole
// recording, of whose strings and lists `before` has those before the block, and nothing else. Throws Error, also where
// the blocks are not as read_recording() found them.
OP_TOOLS_API Recording read_rows(const std::string& path, const RowBlock& first, uint64_t end, Recording before);

// The header alone, without notes that came later: of a file of op_tools its first block is read. Throws as above.
OP_TOOLS_API Value read_recording_header(const std::string& path);

// The files of a folder (or the file itself), sorted by rank. Throws Error when there is none.
OP_TOOLS_API std::vector<std::string> find_recordings(const std::string& path);

}  // namespace op_tools

// Options of OpCapture (base/options.h has those of all tools).
#pragma once

#include <cstdint>

#include "base/disk_time.h"
#include "base/export.h"
#include "base/options.h"
#include "calls/capture_format.h"

namespace op_tools {

struct CaptureOptions : ToolOptions {
  CaptureOptions() : ToolOptions("OP_CAPTURE") {}

  Option<CaptureFormat> format{
      this,
      CaptureFormat::kFolders,
      {"format", "OP_CAPTURE_FORMAT",
       "`folders`: a folder for each call; `container`: an append-only zip for many small calls", "",
       "folders; container in a launch of 16 ranks and more"},
      {"folders", "container"}};
  Option<bool> dedupe{
      this,
      false,
      {"dedupe", "OP_CAPTURE_DEDUPE", "store a tensor's bytes once, by their content; calls refer to them"}};
  Option<int64_t> max_calls{
      this, kNoLimit, {"max_calls", "OP_CAPTURE_MAX_CALLS", "record at most N calls"}, at_least(1)};
  Option<int64_t> max_per_signature{
      this,
      kNoLimit,
      {"max_per_signature", "OP_CAPTURE_MAX_PER_SIGNATURE", "record the first N calls per operator, shapes and dtypes"},
      at_least(1)};
  Option<double> max_gb{
      this, 0, {"max_gb", "OP_CAPTURE_MAX_GB", "write at most X GB, then stop capturing", "", "no limit"}, kAboveZero};
  Option<double> min_free_gb{
      this,
      0,
      {"min_free_gb", "OP_CAPTURE_MIN_FREE_GB", "stop capturing when fewer GB than this are free on the disk; 0: never",
       "", "a tenth of the disk, 5 at most"},
      kNotNegative};
  Option<int64_t> max_pending_mb{this,
                                 1024,
                                 {"max_pending_mb", "OP_TOOLS_MAX_PENDING_MB",
                                  "MB of memory that may wait to be written; when it is full the program waits"},
                                 {1, kMaxNumber >> 20}};
  Option<double> write_timeout{
      this,
      kDiskSilence,
      {"write_timeout", "OP_TOOLS_WRITE_TIMEOUT",
       "seconds in which the disk must take a call; then capturing stops, and the program goes on"},
      kAboveZero};
};
using ResolvedCaptureOptions = Resolved<CaptureOptions>;

}  // namespace op_tools

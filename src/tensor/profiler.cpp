#include "tensor/profiler.h"

#include <ATen/record_function.h>

namespace op_tools {

struct ProfilerPause::Guard {
  at::RecordFunctionGuard guard{/*is_enabled=*/false};
};

ProfilerPause::ProfilerPause() : guard_(std::make_unique<Guard>()) {}
ProfilerPause::~ProfilerPause() = default;
ProfilerPause::ProfilerPause(ProfilerPause&&) noexcept = default;
ProfilerPause& ProfilerPause::operator=(ProfilerPause&&) noexcept = default;

struct ProfilerRange::Record {
  at::RecordFunction function{at::RecordScope::USER_SCOPE};
};

ProfilerRange::ProfilerRange() = default;
ProfilerRange::~ProfilerRange() = default;
ProfilerRange::ProfilerRange(ProfilerRange&&) noexcept = default;
ProfilerRange& ProfilerRange::operator=(ProfilerRange&&) noexcept = default;

void ProfilerRange::begin(const std::string& name) {
  const at::RecordFunctionGuard seen(/*is_enabled=*/true);
  record_ = std::make_unique<Record>();
  if (record_->function.isActive()) record_->function.before("op_tools::" + name);
}

void ProfilerRange::end() {
  record_.reset();
}

}  // namespace op_tools

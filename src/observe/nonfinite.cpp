#include "observe/nonfinite.h"

#include <ATen/ops/aminmax_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/view_as_real_ops.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "tensor/nonfinite_numbers.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

template <class Visit>
void each_special(const at::Tensor& reals, Visit&& visit) {
  const at::Tensor wide = reals.to(at::kDouble).contiguous();
  const double* values = wide.const_data_ptr<double>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    if (!std::isfinite(values[i])) visit(i, values[i]);
  }
}

}  // namespace

// Where a device writes answers, until they are read. The device's own aminmax writes them there: any other operator
// that would gather them (cat) may be an operator that the program suspects.
struct AnswersOnDevice {
  explicit AnswersOnDevice(const at::Tensor& like)
      : memory(at::_ops::empty_memory_format::call({c10::SymInt(kPlaces)}, like.scalar_type(), at::kStrided,
                                                   like.device(), std::nullopt, std::nullopt)) {}

  static constexpr int64_t kPlaces = 256;
  const at::Tensor memory;
  int64_t used = 0;
};

namespace {

std::pair<std::shared_ptr<AnswersOnDevice>, int64_t> place_for_bounds(const at::Tensor& asked) {
  using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;
  static std::mutex mutex;
  static auto* const open = new std::map<Key, std::weak_ptr<AnswersOnDevice>>;  // NOLINT: read until the process ends
  const std::lock_guard lock(mutex);
  std::weak_ptr<AnswersOnDevice>& known = (*open)[{asked.device().type(), asked.device().index(), asked.scalar_type()}];
  std::shared_ptr<AnswersOnDevice> answers = known.lock();
  if (!answers || answers->used + 2 > AnswersOnDevice::kPlaces) {
    known = answers = std::make_shared<AnswersOnDevice>(asked);
  }
  answers->used += 2;
  return {answers, answers->used - 2};
}

}  // namespace

bool may_have_specials(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && why_not_plain(tensor, &type).empty() && tensor.layout() == at::kStrided &&
         !tensor.is_meta() && !tensor._is_zerotensor() && (tensor.is_floating_point() || tensor.is_complex()) &&
         tensor.numel() > 0;
}

NonFiniteQuery::NonFiniteQuery(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) {
    const at::Tensor reals = dense_reals(tensor);
    if (has_nonfinite(reals)) {
      each_special(reals, [&](int64_t, double value) {
        answer_.nan |= std::isnan(value);
        answer_.pos_inf |= value > 0;
        answer_.neg_inf |= value < 0;
      });
    }
    answered_ = true;
    return;
  }
  const at::Tensor reals = tensor.is_complex() ? at::_ops::view_as_real::call(tensor.resolve_conj()) : tensor;
  const bool is_eight_bits = reals.element_size() == 1;
  const at::Tensor asked = is_eight_bits ? reals.to(at::kFloat) : reals;
  std::tie(bounds_, place_) = place_for_bounds(asked);
  at::Tensor least = bounds_->memory.select(0, place_), most = bounds_->memory.select(0, place_ + 1);
  at::_ops::aminmax_out::call(asked, std::nullopt, false, least, most);
}

void NonFiniteQuery::answer_all(const std::vector<NonFiniteQuery*>& questions) {
  std::map<const AnswersOnDevice*, std::vector<NonFiniteQuery*>> groups;
  for (NonFiniteQuery* question : questions) {
    if (!question->answered_) groups[question->bounds_.get()].push_back(question);
  }
  for (auto& [memory, open] : groups) {
    const at::Tensor read = memory->memory.to(at::kCPU).to(at::kDouble);
    const double* values = read.const_data_ptr<double>();
    for (NonFiniteQuery* question : open) {
      const double least = values[question->place_], most = values[question->place_ + 1];
      question->answer_ = {std::isnan(least) || std::isnan(most), std::isinf(most) && most > 0,
                           std::isinf(least) && least < 0};
      question->answered_ = true;
      question->bounds_.reset();
    }
  }
}

SpecialsCount count_specials(const at::Tensor& tensor) {
  SpecialsCount count;
  const at::Tensor here = tensor.to(at::kCPU);
  const at::Tensor reals = here.is_complex() ? at::_ops::view_as_real::call(here.resolve_conj()) : here.resolve_neg();
  int64_t first = -1;
  each_special(reals, [&](int64_t at, double value) {
    if (first < 0) first = here.is_complex() ? at / 2 : at;
    ++(std::isnan(value) ? count.nan : value > 0 ? count.pos_inf : count.neg_inf);
  });
  if (first < 0) return count;
  count.first.resize(static_cast<size_t>(here.dim()));
  for (size_t i = count.first.size(); i-- > 0;) {
    count.first[i] = first % here.size(static_cast<int64_t>(i));
    first /= here.size(static_cast<int64_t>(i));
  }
  return count;
}

}  // namespace op_tools

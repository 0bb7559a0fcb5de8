#include "compare/distribution_test.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "compare/metrics/tolerance.h"

namespace op_tools {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 17;
// Bernstein's bound of a mean of n numbers with deviation s and size up to b: kSigmas s / sqrt(n) + kLargest b / n.
constexpr double kSigmas = 7.53;   // sqrt(2 x), x = log(2 / kRandomSignificance)
constexpr double kLargest = 9.44;  // x / 3

std::vector<int64_t> distances_of(const at::Tensor& tensor) {
  const int64_t row = tensor.dim() > 1 ? tensor.size(-1) : 1;
  return row > 1 ? std::vector<int64_t>{1, row} : std::vector<int64_t>{1};
}

std::vector<double> doubles_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kCPU).to(at::kDouble).contiguous();
  const auto* numbers = static_cast<const double*>(flat.const_data_ptr());
  return {numbers, numbers + flat.numel()};
}

class Arguments {
 public:
  Arguments(const Value& args, const Value& kwargs) : args_(*sequence_items(args)), kwargs_(kwargs) {}

  const Value* find(size_t position, std::string_view name) const {
    if (const Value* value = find_key(kwargs_, name)) return value;
    return position < args_.size() ? &args_[position] : nullptr;
  }
  // nullopt: given as something else than a number (a tensor of means, say).
  std::optional<double> number(size_t position, std::string_view name, double otherwise) const {
    const Value* value = find(position, name);
    if (!value || value->is<None>()) return otherwise;
    if (const auto* real = value->get_if<double>()) return *real;
    if (const auto* whole = value->get_if<int64_t>()) return static_cast<double>(*whole);
    if (const auto* flag = value->get_if<bool>()) return *flag ? 1 : 0;
    return std::nullopt;
  }
  at::Tensor tensor(size_t position, std::string_view name) const {
    const Value* value = find(position, name);
    const auto* member = value ? value->get_if<at::Tensor>() : nullptr;
    return member ? *member : at::Tensor();
  }

 private:
  const Values& args_;
  const Value& kwargs_;
};

std::string text(double number) {
  std::string shown = std::to_string(number);
  return shown;
}

TensorVerdict verdict_of(Deciding deciding, double number, double limit, const std::string& distribution) {
  TensorVerdict verdict;
  verdict.method = AppliedMethod::kStatistical;
  verdict.thresholds = distribution + ", probability " + "1e-12";
  verdict.deciding = deciding;
  verdict.number = number;
  verdict.limit = limit;
  verdict.reason = "random: judged by its distribution";
  if (!(number <= limit)) {
    verdict.verdict = Verdict::kDiffers;
    verdict.kind = "distribution";
    verdict.reason = std::string("not ")
                         .append(distribution)
                         .append(": ")
                         .append(token_of(deciding).help)
                         .append(" ")
                         .append(text(number).append(" over ").append(text(limit)));
  }
  return verdict;
}

TensorVerdict outside_range(double value, const std::string& distribution) {
  TensorVerdict verdict = verdict_of(Deciding::kRange, 1, 0, distribution);
  verdict.reason = "not " + distribution + ": it holds " + text(value);
  return verdict;
}

TensorVerdict not_independent(const std::string& distribution, const std::string& reason) {
  TensorVerdict verdict = verdict_of(Deciding::kDistance, 1, 0, distribution);
  verdict.reason = "not " + distribution + ": " + reason;
  return verdict;
}

// `probabilities` of the numbers, in the order of their elements: uniform numbers without regard to each other.
std::optional<TensorVerdict> dependence(const std::vector<double>& probabilities, const std::vector<int64_t>& distances,
                                        double unit, const std::string& distribution) {
  const size_t n = probabilities.size();
  const auto limit = [&](double deviation, double largest, size_t count) {
    const double of = static_cast<double>(count);
    return kSigmas * deviation / std::sqrt(of) + kLargest * largest / of + 4 * unit;
  };
  const auto mean_product = [&](size_t distance) {
    double sum = 0;
    for (size_t i = distance; i < n; ++i) sum += (probabilities[i] - 0.5) * (probabilities[i - distance] - 0.5);
    return sum / static_cast<double>(n - distance);
  };
  if (n == 0) return std::nullopt;
  const double spread = mean_product(0) - 1.0 / 12;
  if (std::fabs(spread) > limit(std::sqrt(1.0 / 180), 0.25, n)) {
    return not_independent(distribution, std::string("its numbers spread too ") + (spread > 0 ? "far" : "little"));
  }
  for (const int64_t distance : distances) {
    const auto d = static_cast<size_t>(distance);
    if (d < n && std::fabs(mean_product(d)) > limit(1.0 / 12, 0.25, n - d)) {
      return not_independent(distribution, "numbers that are " + std::to_string(d) + " apart go together");
    }
  }
  return std::nullopt;
}

// Of numbers that are 1 with probability p, else 0; negative ones do not count.
std::optional<TensorVerdict> dependence_of_hits(const std::vector<int8_t>& hits, const std::vector<int64_t>& distances,
                                                double p, const std::string& distribution) {
  for (const int64_t distance : distances) {
    double pairs = 0, both = 0;
    for (size_t i = static_cast<size_t>(distance); i < hits.size(); ++i) {
      const int8_t hit = hits[i], other = hits[i - static_cast<size_t>(distance)];
      if (hit < 0 || other < 0) continue;
      ++pairs;
      both += hit * other;
    }
    const double variance = pairs * (p * p * (1 - p * p) + 2 * p * p * p * (1 - p));
    if (std::fabs(both - pairs * p * p) > kSigmas * std::sqrt(variance) + kLargest) {
      return not_independent(distribution, "elements that are " + std::to_string(distance) + " apart go together");
    }
  }
  return std::nullopt;
}

// Kolmogorov-Smirnov. `unit`: rounding of the dtype, which makes steps of the distribution.
TensorVerdict smirnov(std::vector<double> values, double unit, const std::vector<int64_t>& distances,
                      const std::function<double(double)>& probability, const std::string& distribution) {
  const size_t in_order = std::min(values.size(), static_cast<size_t>(kMostSamples));
  std::vector<double> probabilities(in_order);
  std::transform(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(in_order), probabilities.begin(),
                 probability);
  if (static_cast<int64_t>(values.size()) > kMostSamples) {
    const size_t stride = values.size() / static_cast<size_t>(kMostSamples);
    for (size_t i = 0; i < static_cast<size_t>(kMostSamples); ++i) values[i] = values[i * stride];
    values.resize(static_cast<size_t>(kMostSamples));
  }
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) return outside_range(values[i], distribution);
    const double expected = probability(values[i]);
    largest = std::max({largest, static_cast<double>(i + 1) / n - expected, expected - static_cast<double>(i) / n});
  }
  const double limit = std::sqrt(-0.5 * std::log(kRandomSignificance / 2) / std::max(1.0, n)) + 2 * unit;
  TensorVerdict verdict = verdict_of(Deciding::kDistance, largest, limit, distribution);
  if (verdict.verdict != Verdict::kAgrees) return verdict;
  return dependence(probabilities, distances, unit, distribution).value_or(std::move(verdict));
}

// `hits` of `n` with probability p each.
TensorVerdict share(double hits, double n, double p, const std::string& distribution) {
  const double limit = kSigmas * std::sqrt(n * p * (1 - p)) + kSigmas * kSigmas / 2;
  return verdict_of(Deciding::kHits, std::fabs(hits - n * p), limit, distribution);
}

// Numbers beyond the dtype's largest become infinite.
double nearest_finite(double value, c10::ScalarType dtype) {
  const double most = rounding_of(dtype).most;
  return std::isnan(value) ? value : std::clamp(value, -most, most);
}

// Of n numbers that lie so far out with this probability, none does.
bool is_never(double probability, size_t n) {
  return probability * static_cast<double>(n) < kRandomSignificance;
}

std::optional<TensorVerdict> uniform(const Arguments& arguments, const at::Tensor& result, bool has_range) {
  // The bounds are "a" and "b" in torch.nn.init.uniform_.
  const auto from = has_range ? arguments.number(1, arguments.find(1, "from") ? "from" : "a", 0) : 0.0;
  const auto to = has_range ? arguments.number(2, arguments.find(2, "to") ? "to" : "b", 1) : 1.0;
  if (!from || !to) return std::nullopt;
  const std::string name = "uniform";
  std::vector<double> values = doubles_of(result);
  const bool is_rounded = *from != 0 || *to != 1;  // a number next to the bound may become the bound
  for (const double value : values) {
    if (!(value >= *from && (is_rounded ? value <= *to : value < *to))) return outside_range(value, name);
  }
  const double width = *to - *from;
  if (width <= 0) return verdict_of(Deciding::kRange, 0, 0, name);
  const double unit = rounding_of(result.scalar_type()).unit * std::max(std::fabs(*from), std::fabs(*to)) / width;
  return smirnov(
      std::move(values), unit, distances_of(result),
      [&](double x) { return std::clamp((x - *from) / width, 0.0, 1.0); }, name);
}

std::optional<TensorVerdict> normal(const Arguments& arguments, const at::Tensor& result, bool has_moments,
                                    size_t first) {
  const auto mean = has_moments ? arguments.number(first, "mean", 0) : 0.0;
  const auto deviation = has_moments ? arguments.number(first + 1, "std", 1) : 1.0;
  if (!mean || !deviation || *deviation <= 0 || !result.is_floating_point()) return std::nullopt;
  const double unit = rounding_of(result.scalar_type()).unit * (1 + std::fabs(*mean) / *deviation);
  std::vector<double> values = doubles_of(result);
  for (const double value : values) {
    const double away = std::fabs(nearest_finite(value, result.scalar_type()) - *mean) / *deviation;
    if (is_never(std::erfc(away / std::sqrt(2.0)), values.size())) return outside_range(value, "normal");
  }
  return smirnov(
      std::move(values), unit, distances_of(result),
      [&](double x) { return 0.5 * std::erfc((*mean - x) / (*deviation * std::sqrt(2.0))); }, "normal");
}

std::optional<TensorVerdict> exponential(const Arguments& arguments, const at::Tensor& result) {
  const auto rate = arguments.number(1, "lambd", 1);
  if (!rate || *rate <= 0) return std::nullopt;
  std::vector<double> values = doubles_of(result);
  for (const double value : values) {
    const double beyond = std::exp(-*rate * nearest_finite(value, result.scalar_type()));
    if (value < 0 || is_never(beyond, values.size())) return outside_range(value, "exponential");
  }
  return smirnov(
      std::move(values), rounding_of(result.scalar_type()).unit, distances_of(result),
      [&](double x) { return x <= 0 ? 0 : 1 - std::exp(-*rate * x); }, "exponential");
}

// The same, without regard to each other.
TensorVerdict hits_of(const std::vector<int8_t>& drawn, double hits, double n, const std::vector<int64_t>& distances,
                      double p, const std::string& distribution) {
  TensorVerdict verdict = share(hits, n, p, distribution);
  if (verdict.verdict != Verdict::kAgrees) return verdict;
  return dependence_of_hits(drawn, distances, p, distribution).value_or(std::move(verdict));
}

std::optional<TensorVerdict> bernoulli(const Arguments& arguments, const at::Tensor& result, bool in_place) {
  const std::vector<double> values = doubles_of(result);
  double hits = 0;
  for (const double value : values) {
    if (value != 0 && value != 1) return outside_range(value, "zeros and ones");
    hits += value;
  }
  const std::vector<int8_t> drawn(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  const at::Tensor rates = in_place ? arguments.tensor(1, "p") : arguments.tensor(0, "input");
  if (in_place || arguments.find(1, "p")) {
    const auto p = arguments.number(1, "p", 0.5);
    if (p) return hits_of(drawn, hits, n, distances_of(result), std::clamp(*p, 0.0, 1.0), "Bernoulli");
  }
  if (!rates.defined() || n == 0) return std::nullopt;
  double sum = 0;
  for (const double p : doubles_of(rates)) sum += p;
  const double mean = sum / static_cast<double>(std::max<int64_t>(1, rates.numel()));
  return share(hits, n, std::clamp(mean, 0.0, 1.0), "Bernoulli");
}

// Each element is zero with probability p, else the input's, scaled by 1 / (1 - p).
std::optional<TensorVerdict> dropout(const Arguments& arguments, const std::vector<at::Tensor>& results, size_t index) {
  const at::Tensor& result = results[index];
  const at::Tensor input = arguments.tensor(0, "input");
  const auto p = arguments.number(1, "p", 0.5);
  const auto training = arguments.number(2, "training", 1);
  if (!input.defined() || !p || !training || index > 1 || input.sizes() != result.sizes()) return std::nullopt;
  const std::vector<double> in = doubles_of(input), out = doubles_of(result);
  const std::vector<double> dropped = index == 1 ? doubles_of(results[0]) : std::vector<double>();
  const bool drops = *training != 0;
  const double scale = drops ? (*p >= 1 ? 0 : 1 / (1 - *p)) : 1;
  const double unit = rounding_of(result.scalar_type()).unit;
  double n = 0, zeros = 0;
  std::vector<int8_t> drawn(out.size(), -1);
  for (size_t i = 0; i < out.size(); ++i) {
    if (index == 1) {  // the mask of native_dropout
      n += 1;
      zeros += out[i] == 0;
      drawn[i] = out[i] == 0;
      const bool is_told = i < dropped.size() && in[i] != 0 && std::isfinite(in[i]);
      if (is_told && (dropped[i] == 0) != (out[i] == 0)) {
        TensorVerdict verdict = verdict_of(Deciding::kDropped, 1, 0, "dropout");
        verdict.reason = "the mask is another one than that of the result";
        return verdict;
      }
      continue;
    }
    if (in[i] == 0 || !std::isfinite(in[i])) continue;
    n += 1;
    zeros += out[i] == 0;
    drawn[i] = out[i] == 0;
    const double expected = in[i] * scale;
    if (out[i] != 0 && !(std::fabs(out[i] - expected) <= 2 * unit * std::fabs(expected)) &&
        std::fabs(expected) > 1 / unit * rounding_of(result.scalar_type()).least) {
      TensorVerdict verdict = verdict_of(Deciding::kDropped, 1, 0, "dropout");
      verdict.reason = "dropout gives " + text(out[i]) + " for " + text(in[i]) + ", neither 0 nor the scaled input";
      return verdict;
    }
  }
  return hits_of(drawn, zeros, n, distances_of(result), drops ? std::clamp(*p, 0.0, 1.0) : 0, "dropout");
}

std::optional<TensorVerdict> integers(const at::Tensor& result, std::optional<double> low, std::optional<double> high) {
  if (!low || !high || *high <= *low) return std::nullopt;
  std::vector<double> values = doubles_of(result);
  double sum = 0;
  for (const double value : values) {
    if (!(value >= *low && value < *high) || value != std::floor(value)) {
      return outside_range(value, "integers of the range");
    }
    sum += (value - *low + 0.5) / (*high - *low);
  }
  const double n = static_cast<double>(values.size());
  // The mean of n uniform numbers.
  const double limit = 7.2 * std::sqrt(1 / (12 * std::max(1.0, n))) + 1 / std::max(1.0, n);
  return verdict_of(Deciding::kMean, std::fabs(sum / std::max(1.0, n) - 0.5) * (n > 0), limit, "uniform integers");
}

TensorVerdict permutation(const at::Tensor& result) {
  constexpr size_t kTelling = 16;  // numbers: one order of 16! is never drawn
  std::vector<double> values = doubles_of(result);
  if (values.size() >= kTelling && std::is_sorted(values.begin(), values.end())) {
    return not_independent("a permutation", "its numbers are in order");
  }
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<double>(i)) return outside_range(values[i], "a permutation");
  }
  return verdict_of(Deciding::kMissing, 0, 0, "a permutation");
}

}  // namespace

std::optional<TensorVerdict> judge_distribution(std::string_view name, const Value& args, const Value& kwargs,
                                                const std::vector<at::Tensor>& results, size_t index) {
  const at::Tensor& result = results[index];
  if (result.layout() != at::kStrided || result.is_complex() || result.numel() == 0) return std::nullopt;
  const Arguments arguments(args, kwargs);
  if (name == "rand" || name == "rand_like") return uniform(arguments, result, false);
  if (name == "uniform_" || name == "uniform") return uniform(arguments, result, true);
  if (name == "randn" || name == "randn_like") return normal(arguments, result, false, 0);
  if (name == "normal_") return normal(arguments, result, true, 1);
  if (name == "normal") return normal(arguments, result, true, 0);
  if (name == "exponential_" || name == "exponential") return exponential(arguments, result);
  if (name == "bernoulli_") return bernoulli(arguments, result, true);
  if (name == "bernoulli") return bernoulli(arguments, result, false);
  if (name == "dropout" || name == "dropout_" || name == "native_dropout") return dropout(arguments, results, index);
  if (name == "randperm") return permutation(result);
  if (name == "random_") {
    if (!arguments.find(1, "from") && !arguments.find(1, "to")) return std::nullopt;
    const bool both = arguments.find(2, "to") && !arguments.find(2, "to")->is<None>();
    return both ? integers(result, arguments.number(1, "from", 0), arguments.number(2, "to", 0))
                : integers(result, 0, arguments.number(1, "to", 0));
  }
  if (name == "randint") {  // randint(high, size), randint(low, high, size)
    const Value* second = arguments.find(1, "high");
    const bool both = second && second->get_if<int64_t>();
    return both ? integers(result, arguments.number(0, "low", 0), arguments.number(1, "high", 0))
                : integers(result, 0, arguments.number(0, "high", 0));
  }
  return std::nullopt;
}

}  // namespace op_tools

#include "runs/key_alignment.h"

#include <algorithm>
#include <optional>

namespace op_tools {
namespace {

struct KeyPlace {
  uint64_t key;
  uint32_t place;
};

// The keys that occur once, sorted.
std::vector<KeyPlace> unique_keys(Keys keys) {
  std::vector<KeyPlace> places;
  places.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != 0) places.push_back({keys[i], static_cast<uint32_t>(i)});
  }
  std::sort(places.begin(), places.end(),
            [](const KeyPlace& place, const KeyPlace& other) { return place.key < other.key; });
  size_t kept = 0;
  for (size_t i = 0; i < places.size();) {
    size_t end = i + 1;
    while (end < places.size() && places[end].key == places[i].key) ++end;
    if (end == i + 1) places[kept++] = places[i];
    i = end;
  }
  places.resize(kept);
  return places;
}

// Of pairs that rise on side a, the most that rise on side b, too.
Matches longest_rising(const Matches& pairs) {
  std::vector<uint32_t> tails;                    // by length: the pair that ends the best chain of it
  std::vector<uint32_t> before(pairs.size(), 0);  // the pair before, plus 1
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const auto longer = std::lower_bound(tails.begin(), tails.end(), pairs[i].second,
                                         [&](uint32_t tail, uint32_t b) { return pairs[tail].second < b; });
    before[i] = longer == tails.begin() ? 0 : *(longer - 1) + 1;
    if (longer == tails.end()) {
      tails.push_back(i);
    } else {
      *longer = i;
    }
  }
  Matches chain(tails.size());
  uint32_t next = tails.empty() ? 0 : tails.back() + 1;
  for (size_t i = chain.size(); i-- > 0; next = before[next - 1]) chain[i] = pairs[next - 1];
  return chain;
}

// Myers' algorithm on a part; the names are those of the paper.
class Myers {
 public:
  Myers(Keys a, Keys b, int64_t most_edits, Matches* out) : a_(a), b_(b), most_edits_(most_edits), out_(*out) {}

  // The part [a0, a1) x [b0, b1).
  void align(int64_t a0, int64_t a1, int64_t b0, int64_t b1) {
    while (a0 < a1 && b0 < b1 && a_[a0] == b_[b0]) add(a0++, b0++);
    int64_t tail = 0;
    while (a0 < a1 && b0 < b1 && a_[a1 - 1] == b_[b1 - 1]) --a1, --b1, ++tail;
    if (a0 < a1 && b0 < b1) {
      if (const auto middle = middle_snake(a0, a1, b0, b1)) {
        align(a0, middle->x, b0, middle->y);
        align(middle->x, a1, middle->y, b1);
      }
    }
    for (int64_t i = 0; i < tail; ++i) add(a1 + i, b1 + i);
  }

 private:
  struct Point {
    int64_t x, y;
  };

  void add(int64_t a, int64_t b) { out_.emplace_back(static_cast<uint32_t>(a), static_cast<uint32_t>(b)); }

  // How far paths of the same number of edits come on each diagonal. -1: none of them is on it.
  class Reach {
   public:
    Reach(int64_t most, int64_t n, int64_t m) : offset_(most + 1), n_(n), m_(m), x_(2 * offset_ + 1, -1) {}

    int64_t on(int64_t k) const { return x_[offset_ + k]; }
    // With another edit: from the diagonals beside it.
    int64_t extended(int64_t k, int64_t d) const {
      if (d == 0) return 0;
      const int64_t right = x_[offset_ + k - 1], down = x_[offset_ + k + 1];
      int64_t x = right >= 0 && right < n_ && right + 1 - k <= m_ ? right + 1 : -1;
      if (down >= 0 && down - k <= m_) x = std::max(x, down);
      return x;
    }
    void set(int64_t k, int64_t x) { x_[offset_ + k] = x; }

   private:
    int64_t offset_, n_, m_;
    std::vector<int64_t> x_;
  };

  // A point on a shortest path, neither its start nor its end. None when the path has more edits than allowed.
  std::optional<Point> middle_snake(int64_t a0, int64_t a1, int64_t b0, int64_t b1) const {
    const int64_t n = a1 - a0, m = b1 - b0, delta = n - m;
    const int64_t most = std::min((n + m + 1) / 2, (most_edits_ + 1) / 2);
    Reach forward(most, n, m), backward(most, n, m);
    for (int64_t d = 0; d <= most; ++d) {
      for (int64_t k = -d; k <= d; k += 2) {
        int64_t x = forward.extended(k, d);
        while (x >= 0 && x < n && x - k < m && a_[a0 + x] == b_[b0 + x - k]) ++x;
        forward.set(k, x);
        const int64_t other = delta - k;  // the diagonal as the way back counts it
        if (delta % 2 != 0 && x >= 0 && std::abs(other) < d && backward.on(other) >= 0 && x + backward.on(other) >= n) {
          return Point{a0 + x, b0 + x - k};
        }
      }
      for (int64_t k = -d; k <= d; k += 2) {
        int64_t x = backward.extended(k, d);
        while (x >= 0 && x < n && x - k < m && a_[a1 - 1 - x] == b_[b1 - 1 - x + k]) ++x;
        backward.set(k, x);
        const int64_t other = delta - k;
        if (delta % 2 == 0 && x >= 0 && std::abs(other) <= d && forward.on(other) >= 0 && x + forward.on(other) >= n) {
          return Point{a1 - x, b1 - x + k};
        }
      }
    }
    return std::nullopt;
  }

  const Keys a_, b_;
  const int64_t most_edits_;
  Matches& out_;
};

// Anchors inside of anchors so deep at most: a file may be made to have any number of them.
constexpr int kMostDepth = 200;

void align_part(Keys a, Keys b, uint32_t a0, uint32_t b0, int64_t most_edits, int depth, Matches* out) {
  size_t head = 0;
  while (head < a.size() && head < b.size() && a[head] == b[head]) {
    out->emplace_back(a0 + head, b0 + head);
    ++head;
  }
  a = a.subspan(head), b = b.subspan(head);
  a0 += head, b0 += head;
  size_t tail = 0;
  while (tail < a.size() && tail < b.size() && a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) ++tail;
  a = a.first(a.size() - tail), b = b.first(b.size() - tail);
  if (!a.empty() && !b.empty()) {
    const Matches anchors = depth < kMostDepth ? unique_matches(a, b) : Matches();
    if (anchors.empty()) {
      Matches matches;
      Myers(a, b, most_edits, &matches).align(0, a.size(), 0, b.size());
      for (const auto& [at_a, at_b] : matches) out->emplace_back(a0 + at_a, b0 + at_b);
    } else {
      uint32_t from_a = 0, from_b = 0;
      for (const auto& [at_a, at_b] : anchors) {
        align_part(a.subspan(from_a, at_a - from_a), b.subspan(from_b, at_b - from_b), a0 + from_a, b0 + from_b,
                   most_edits, depth + 1, out);
        out->emplace_back(a0 + at_a, b0 + at_b);
        from_a = at_a + 1, from_b = at_b + 1;
      }
      align_part(a.subspan(from_a), b.subspan(from_b), a0 + from_a, b0 + from_b, most_edits, depth + 1, out);
    }
  }
  for (size_t i = 0; i < tail; ++i) out->emplace_back(a0 + a.size() + i, b0 + b.size() + i);
}

}  // namespace

Matches unique_matches(Keys a, Keys b) {
  const std::vector<KeyPlace> of_a = unique_keys(a), of_b = unique_keys(b);
  Matches pairs;
  for (size_t i = 0, j = 0; i < of_a.size() && j < of_b.size();) {
    if (of_a[i].key == of_b[j].key) {
      pairs.emplace_back(of_a[i++].place, of_b[j++].place);
    } else {
      ++(of_a[i].key < of_b[j].key ? i : j);
    }
  }
  std::sort(pairs.begin(), pairs.end());
  return longest_rising(pairs);
}

Matches align_keys(Keys a, Keys b, int64_t most_edits) {
  Matches matches;
  matches.reserve(std::min(a.size(), b.size()));
  align_part(a, b, 0, 0, most_edits, 0, &matches);
  return matches;
}

}  // namespace op_tools

#include "base/op_filter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <shared_mutex>

#include "base/error.h"
#include "base/other_names.h"

namespace op_tools {
namespace {

// Limits of an item. std::regex recurses over the states of an expression, so a long one with
// large repeat counts would overflow the stack of the thread that asks; both are far beyond the
// needs of operators' names.
constexpr size_t kMaxItem = 256;
constexpr size_t kMaxRepeats = 32;

constexpr auto kSyntax = std::regex::ECMAScript | std::regex::optimize | std::regex::nosubs
#ifdef __GLIBCXX__
                         | std::regex_constants::__polynomial  // no backtracking: "(a*)*b" must not hang the program
#endif
    ;

// An expression of plain characters, '.' and '.*' only, which nearly every item is: matched in
// place, without std::regex.
struct Glob {
  struct Token {
    enum Kind : uint8_t { kPlain, kAnyOne, kAnyMany } kind;
    char c;
  };
  std::vector<Token> tokens;

  // nullopt when `item` needs a real regular expression.
  static std::optional<Glob> parse(std::string_view item) {
    Glob glob;
    for (size_t i = 0; i < item.size(); ++i) {
      const char c = item[i];
      if (c == '.') {
        const bool many = i + 1 < item.size() && item[i + 1] == '*';
        glob.tokens.push_back({many ? Token::kAnyMany : Token::kAnyOne, '.'});
        i += many;
      } else if (c == '\\' && i + 1 < item.size() && std::ispunct(static_cast<unsigned char>(item[i + 1]))) {
        glob.tokens.push_back({Token::kPlain, item[++i]});
      } else if (std::string_view("^$\\*+?()[]{}|").find(c) != std::string_view::npos) {
        return std::nullopt;
      } else {
        glob.tokens.push_back({Token::kPlain, c});
      }
    }
    return glob;
  }

  bool matches(std::string_view name) const {
    size_t at = 0, token = 0, star = std::string_view::npos, star_at = 0;
    while (at < name.size()) {
      if (token < tokens.size() && tokens[token].kind == Token::kAnyMany) {
        star = token++;
        star_at = at;
      } else if (token < tokens.size() && (tokens[token].kind == Token::kAnyOne || tokens[token].c == name[at])) {
        ++token;
        ++at;
      } else if (star != std::string_view::npos) {
        token = star + 1;  // the last ".*" takes another character
        at = ++star_at;
      } else {
        return false;
      }
    }
    while (token < tokens.size() && tokens[token].kind == Token::kAnyMany) ++token;
    return token == tokens.size();
  }
};

// Facts about torch's functions, without torch.
struct KnownNames {
  std::shared_mutex mutex;
  std::multimap<std::string, std::string, std::less<>> others;

  void add(const std::vector<std::pair<std::string, std::string>>& names) {
    for (const auto& pair : names) {
      const auto [first, last] = others.equal_range(pair.first);
      if (std::none_of(first, last, [&](const auto& known) { return known.second == pair.second; }))
        others.insert(pair);
    }
  }

  static KnownNames& get() {
    static auto* const known = [] {
      auto* names = new KnownNames;
      names->add(other_names_of_torch());
      return names;
    }();  // leaked: calls may come until the process ends
    return *known;
  }
};

// The ways in which a user may write a name: for "aten::add.Tensor" also "add.Tensor", "aten::add"
// and "add".
class Spellings {
 public:
  explicit Spellings(std::string_view name) {
    add(name);
    const size_t colons = name.find("::");
    if (colons == std::string_view::npos) {
      add_others(name);
      return;
    }
    const std::string_view base = name.substr(colons + 2);
    add(base);
    const size_t dot = base.find('.');
    if (dot == std::string_view::npos) return;
    add(name.substr(0, colons + 2 + dot));
    add(base.substr(0, dot));
  }
  const std::string_view* begin() const { return all_.data(); }
  const std::string_view* end() const { return all_.data() + count_; }

 private:
  void add(std::string_view spelling) {
    if (count_ < all_.size()) all_[count_++] = spelling;
  }
  // They live as long as the process.
  void add_others(std::string_view name) {
    KnownNames& known = KnownNames::get();
    const std::shared_lock lock(known.mutex);
    const auto [first, last] = known.others.equal_range(name);
    for (auto other = first; other != last; ++other) add(other->second);
  }
  std::array<std::string_view, 4> all_;
  size_t count_ = 0;
};

// "*mul" of a shell is ".*mul" here; nothing where that would change nothing.
std::string as_regular_expression(std::string_view text) {
  std::string expression;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool bare = text[i] == '*' && (i == 0 || !std::strchr(".)]}\\", text[i - 1]));
    expression += bare ? ".*" : std::string(1, text[i]);
  }
  return expression == text ? std::string() : expression;
}

class Item {
 public:
  Item(std::string_view text, std::string_view source) : text_(text), source_(source), glob_(Glob::parse(text)) {
    if (glob_) return;
    if (text.size() > kMaxItem) refuse("is longer than " + std::to_string(kMaxItem) + " characters");
    if (repeats(text) > kMaxRepeats) {
      refuse("repeats a part more than " + std::to_string(kMaxRepeats) + " times");
    }
    try {
      regex_.emplace(text_, kSyntax);
    } catch (const std::regex_error& error) {
      refuse(std::string("is no valid regular expression (") + error.what() + ")");
    }
  }

  bool matches(const Spellings& names) const {
    return std::any_of(names.begin(), names.end(), [this](std::string_view name) {
      return glob_ ? glob_->matches(name) : std::regex_match(name.begin(), name.end(), *regex_);
    });
  }

  const std::string& text() const { return text_; }
  std::string describe() const { return source_ + ": '" + text_ + "'"; }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    const std::string meant = as_regular_expression(text_);
    throw Error(describe() + " " + why + (meant.empty() ? "" : "; did you mean '" + meant + "'?") +
                "; give comma-separated names or ECMAScript regular expressions that match whole names");
  }

  // The product of the counts of all "{n}", "{n,}", "{n,m}": an upper bound of how often any part
  // is repeated.
  static size_t repeats(std::string_view text) {
    size_t product = 1;
    for (size_t open = text.find('{'); open != std::string_view::npos; open = text.find('{', open + 1)) {
      size_t largest = 1, number = 0;
      for (size_t i = open + 1; i < text.size() && text[i] != '}'; ++i) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        number = digit ? std::min<size_t>(number * 10 + (text[i] - '0'), kMaxRepeats + 1) : 0;
        largest = std::max(largest, number);
      }
      product = std::min(product * largest, kMaxRepeats + 1);
    }
    return product;
  }

  std::string text_;
  std::string source_;
  std::optional<Glob> glob_;
  std::optional<std::regex> regex_;
};

// Items of a list: split at commas outside brackets, blanks trimmed, empty items dropped.
std::vector<Item> parse_list(std::string_view list, std::string_view source) {
  std::vector<Item> items;
  const auto add = [&](std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const size_t first = text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return;
    items.emplace_back(text.substr(first, text.find_last_not_of(kBlanks) - first + 1), source);
  };
  size_t start = 0, depth = 0;
  bool in_class = false;  // between '[' and ']', where parentheses and braces are plain characters
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (c == '\\') {
      ++i;
    } else if (in_class || c == '[') {
      in_class = c != ']';
    } else if (c == '(' || c == '{') {
      ++depth;
    } else if ((c == ')' || c == '}') && depth > 0) {
      --depth;
    } else if (c == ',' && depth == 0) {
      add(list.substr(start, i - start));
      start = i + 1;
    }
  }
  add(list.substr(std::min(start, list.size())));
  return items;
}

bool any_matches(const std::vector<Item>& items, const Spellings& names) {
  return std::any_of(items.begin(), items.end(), [&](const Item& item) { return item.matches(names); });
}

}  // namespace

struct OpFilter::Impl {
  Impl(std::vector<Item> only_items, std::vector<Item> skip_items)
      : only(std::move(only_items)),
        skip(std::move(skip_items)),
        matched(only.size() + skip.size()),
        unmatched(matched.size()) {}

  const Item& item(size_t index) const { return index < only.size() ? only[index] : skip[index - only.size()]; }

  const std::vector<Item> only, skip;
  // By item, `only` first; `unmatched` counts those that are still false, so that saw() costs a
  // load in the end.
  std::vector<std::atomic<bool>> matched;
  std::atomic<size_t> unmatched;
};

OpFilter::OpFilter(std::string_view only, std::string_view skip, std::string_view only_source,
                   std::string_view skip_source)
    : impl_(std::make_unique<Impl>(parse_list(only, only_source), parse_list(skip, skip_source))) {}

OpFilter::~OpFilter() = default;

bool OpFilter::admits(std::string_view name) const {
  const Spellings names(name);
  return (impl_->only.empty() || any_matches(impl_->only, names)) && !any_matches(impl_->skip, names);
}

bool OpFilter::names(std::string_view name) const {
  return any_matches(impl_->only, Spellings(name));
}

bool OpFilter::has_only() const {
  return !impl_->only.empty();
}

void OpFilter::saw(std::string_view name) const {
  if (impl_->unmatched.load(std::memory_order_relaxed) == 0) return;
  const Spellings names(name);
  for (size_t i = 0; i < impl_->matched.size(); ++i) {
    if (impl_->matched[i].load(std::memory_order_relaxed) || !impl_->item(i).matches(names)) continue;
    if (!impl_->matched[i].exchange(true, std::memory_order_relaxed)) {
      impl_->unmatched.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

std::vector<OpFilter::Unmatched> OpFilter::unmatched_items() const {
  std::vector<Unmatched> items;
  for (size_t i = 0; i < impl_->matched.size(); ++i) {
    if (!impl_->matched[i].load(std::memory_order_relaxed))
      items.push_back({impl_->item(i).text(), impl_->item(i).describe()});
  }
  return items;
}

void add_other_names(const std::vector<std::pair<std::string, std::string>>& names) {
  KnownNames& known = KnownNames::get();
  const std::unique_lock lock(known.mutex);
  known.add(names);
}

}  // namespace op_tools

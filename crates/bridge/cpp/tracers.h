// The tracers of the transforms around one.
#pragma once

#include "bridge.h"

namespace tacit {

// The results of a function for tracers of a transform of ours.
std::vector<array> traced(const ArrayFunction& function, const std::vector<array>& tracers);

// MLX's vjp and jvp take the mark of a tracer from all that their results reach, also from what another transform around them has
// marked: what is computed of that afterwards would count as a constant. This marks it again.
class OuterTracers {
 public:
  OuterTracers() = default;
  OuterTracers(const OuterTracers&) = delete;
  OuterTracers& operator=(const OuterTracers&) = delete;

  // To be told the transform's own tracers and the results, inside it.
  void see(const std::vector<array>& entered, const std::vector<array>& results);

  // Marks what the results reach, and gives back the derivatives with theirs.
  std::vector<array> mark(std::vector<array> derivatives);

  // Marks what the results reach, if an error came first: the function around may go on.
  ~OuterTracers();

 private:
  void mark_reached();

  bool inside_ = in_transform();
  std::vector<array> tracers_;
  std::vector<array> reaching_;
};

}  // namespace tacit

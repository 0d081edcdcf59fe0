#include "names.h"

#include "graph.h"

using namespace tacit;

extern "C" {

// Leaves `id` as it is if no primitive makes the array.
int tacit_array_name(Handle handle, uint32_t* id) {
  return guarded([&] {
    const auto& value = get(handle);
    if (value.has_primitive()) {
      *id = name_id(value.primitive().name());
    }
  });
}

int tacit_name_intern(const char* name, uint32_t* id) {
  return guarded([&] { *id = names().intern(name); });
}

int tacit_name_text(uint32_t id, const char** text) {
  return guarded([&] { *text = names().text(id); });
}
}

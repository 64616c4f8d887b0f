#pragma once
struct fake_name {
    const char *name;
    void *address;
};
extern const struct fake_name fake_names[];
extern const unsigned fake_name_count;

/* Names the call and aborts. */
_Noreturn void fake_unknown(const char *name);

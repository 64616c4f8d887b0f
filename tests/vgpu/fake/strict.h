#pragma once
struct fake_name {
    const char *name;
    void *address;
};
extern const struct fake_name fake_names[];
extern const unsigned fake_name_count;

/* Names the call and aborts. */
_Noreturn void fake_unknown(const char *name);

/* A function of a fake library; the usual one says an error or 0. */
#define FAKE_EXPORT(type, name, ...)                               \
    __attribute__((visibility("default"))) type name(__VA_ARGS__); \
    __attribute__((visibility("default"))) type name(__VA_ARGS__)
#define EXPORT(name, ...) FAKE_EXPORT(int, name, __VA_ARGS__)

// How domains are written.
#include "answers.h"

int listed(const struct value *list, int count, int k, struct value *value);
int bits_after(const struct value *list, int count, int bits, int k, struct value *value);
#define LISTED(list) listed(list, sizeof list / sizeof *list, k, v)
#define NUMBERS(name, ...)                              \
    int name(struct slot *s, int k, struct value *v) { \
        static const struct value list[] = {__VA_ARGS__}; \
        return LISTED(list);                            \
    }
#define BITS(name, bits, ...)                                               \
    int name(struct slot *s, int k, struct value *v) {                     \
        static const struct value list[] = {__VA_ARGS__};                   \
        return bits_after(list, sizeof list / sizeof *list, bits, k, v);    \
    }

/* A tool as NVTX loads it (NVTX_INJECTION64_PATH): prints every push and pop of a domain's ranges. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { EXPORT_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };

typedef void (*function)(void);
struct callbacks {
    size_t size;
    int (*get_table)(int module, function ***table, unsigned *entries);
};
struct event {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message; /* for a registered string, what register_string returned */
};

static const void *create_domain(const char *name) { return strdup(name); }
static const void *register_string(const void *domain, const char *text) { return strdup(text); }

static int push(const char *domain, const struct event *event) {
    printf("push %s %s\n", domain, event->message);
    return 0;
}

static int pop(const char *domain) {
    printf("pop %s\n", domain);
    return 0;
}

int InitializeInjectionNvtx2(const void *(*get_export)(uint32_t)) {
    const struct callbacks *callbacks = get_export(EXPORT_CALLBACKS);
    function **table;
    unsigned entries;
    if (!callbacks || !callbacks->get_table(MODULE_CORE2, &table, &entries) || entries <= DOMAIN_CREATE) return 0;
    *table[RANGE_PUSH] = (function)push;
    *table[RANGE_POP] = (function)pop;
    *table[REGISTER_STRING] = (function)register_string;
    *table[DOMAIN_CREATE] = (function)create_domain;
    setvbuf(stdout, NULL, _IONBF, 0);
    return 1;
}

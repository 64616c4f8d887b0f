/* Every allocation of placement fails once: what failed says so, and books stay right. */
#include "fault.h"
#include "sched/place.h"

static int add_node(struct vg_eng *e, uint64_t id, uint32_t gpus) {
    static char *labels[] = {"zone=a", "disk=fast"};
    struct vg_eng_gpu g[8] = {0};
    for (uint32_t i = 0; i < gpus; i++)
        g[i].index = i;
    struct vg_eng_node n = {.id = id,
                            .name = "n",
                            .total = {.cpu_milli = 8000},
                            .gpu = g,
                            .n_gpus = gpus,
                            .model = "A100",
                            .rack = id % 2 ? "r1" : "r2",
                            .labels = labels,
                            .n_labels = 2,
                            .usable = true};
    return vg_eng_set_node(e, &n);
}

static struct vg_eng_req request(uint32_t gpus, uint32_t milli) {
    static char *labels[] = {"zone=a"};
    return (struct vg_eng_req){.pool = {1},
                               .n_pools = 1,
                               .res = {.gpus = gpus, .gpu_milli = milli},
                               .model = "A100|H100",
                               .labels = labels,
                               .n_labels = 1};
}

/* A place is found with or without memory for an index. */
static void find(struct vg_eng *e, uint32_t gpus, uint32_t milli) {
    struct vg_eng_req r = request(gpus, milli);
    struct fit *f = vg_fit_get(e, &r);
    struct spot s[3];
    enum vg_eng_code c;
    if (!f)
        return;
    vg_score_note(e, f);
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, s, &c), 1);
    if (vg_fit_find_gang(e, f, NULL, 3, 0, 0, s, &c) == 0)
        cr_assert_eq(c, VG_ENG_BUSY);
    vg_fit_put(e, f);
}

static void place(void *ctx, bool armed) {
    struct vg_eng *e = vg_eng_new();
    struct vg_eng_pool p = {.name = "p", .id = 1};
    struct vg_eng_mix mix[] = {{.res = {.gpus = 1}, .model = "A100", .count = 3},
                               {.res = {.gpu_milli = 300}, .count = 3}};
    int r;
    (void)ctx;
    (void)armed;
    if (!e)
        return;
    if ((r = vg_eng_set_pool(e, &p)) == 0) {
        uint32_t nodes = 0;
        for (uint64_t id = 1; id <= 4; id++) {
            r = add_node(e, id, 4);
            cr_assert(r == 0 || r == -ENOMEM);
            nodes += r == 0;
        }
        cr_assert_eq(e->pool[0]->nodes, nodes, "a node that failed to come is not counted");
        cr_assert_eq(e->capacity.gpu_milli, nodes * 4000ull);
        r = add_node(e, 2, 2); /* shrinks, or stays as it was */
        cr_assert(r == 0 || r == -ENOMEM);
        find(e, 1, 0);
        find(e, 0, 300);
        r = vg_eng_set_mix(e, mix, 2);
        cr_assert(r == 0 || r == -ENOMEM);
        find(e, 1, 0);
        vg_eng_set_cached(e, 1, 5, true);
        vg_eng_remove_node(e, 3);
        find(e, 0, 300);
        cr_assert_null(vg_eng_check(e), "%s", vg_eng_check(e));
    }
    cr_assert(r == 0 || r == -ENOMEM);
    vg_eng_free(e);
}

Test(place_fault, books_are_right_whatever_memory_was_refused) {
    cr_assert_geq(fault_each(ENOMEM, "alloc", place, NULL), 100);
}

/* Every allocation of the taking of a body fails once: it is refused, and nothing is left behind.
 */
#include "fault.h"
#include "view/views.h"

static void take(void *ctx, bool armed) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *m = NULL;
    int r = vg_view_take(&vg_view_task_spec, ctx, &m, &err);
    (void)armed;
    cr_assert(r == 0 || r == -ENOMEM, "%d %s", r, err.msg);
    cr_assert(r == 0 ? m != NULL : err.msg[0] != 0);
    protobuf_c_message_free_unpacked(m, NULL);
}

Test(view_fault, a_body_is_taken_whole_or_not_at_all) {
    json_t *j =
        json_loads("{\"argv\": [\"a\", \"b\"], \"env\": {\"K\": \"v\"}, \"labels\": {\"l\": "
                   "\"m\"}, \"want\": {\"gpus\": 1}, \"sweep\": [{\"name\": \"S\", "
                   "\"value\": [\"1\"]}], \"after\": [{\"task\": \"t\"}], \"secrets\": "
                   "[\"N\"], \"image\": \"i\", \"pool\": \"p\"}",
                   0, NULL);
    cr_assert(j);
    cr_assert_geq(fault_each(ENOMEM, "alloc", take, j), 15);
    json_decref(j);
}

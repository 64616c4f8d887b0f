/* nf_tables messages. See nft.h. Every match loads into register 1 and compares it there, so that
   no match depends on another one's registers. Numbers in nf_tables attributes are big-endian. */
#include "sandbox/nft.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nf_nat.h>
#include <linux/netfilter/nfnetlink.h>
#include <net/if.h>
#include <string.h>

#define STATE_KNOWN (NF_CT_STATE_BIT(IP_CT_ESTABLISHED) | NF_CT_STATE_BIT(IP_CT_RELATED))

static void begin(struct vg_nlb *b, unsigned msg, unsigned flags) {
    struct nfgenmsg g = {.nfgen_family = NFPROTO_IPV4, .version = NFNETLINK_V0};
    vg_nlb_begin(b, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | msg), flags, &g, sizeof g);
}

static void be32(struct vg_nlb *b, unsigned type, uint32_t v) {
    vg_nlb_u32(b, type, htonl(v));
}

static void bracket(struct vg_nlb *b, uint16_t type) {
    struct nfgenmsg g = {.version = NFNETLINK_V0, .res_id = htons(NFNL_SUBSYS_NFTABLES)};
    vg_nlb_begin(b, type, 0, &g, sizeof g);
}

void vg_nft_begin(struct vg_nlb *b) {
    vg_nlb_reset(b);
    bracket(b, NFNL_MSG_BATCH_BEGIN);
}

/* The closing bracket is not acknowledged by every kernel: the message before it is. */
int vg_nft_commit(struct vg_nl *nl, struct vg_nlb *b) {
    vg_nlb_ack(b);
    bracket(b, NFNL_MSG_BATCH_END);
    return vg_nl_send(nl, b, NULL);
}

void vg_nft_table(struct vg_nlb *b, const char *table) {
    begin(b, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    vg_nlb_str(b, NFTA_TABLE_NAME, table);
}

void vg_nft_table_del(struct vg_nlb *b, const char *table) {
    begin(b, NFT_MSG_DELTABLE, 0);
    vg_nlb_str(b, NFTA_TABLE_NAME, table);
}

void vg_nft_chain(struct vg_nlb *b, const char *table, const char *chain, const char *type,
                  unsigned hook, int priority) {
    begin(b, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    vg_nlb_str(b, NFTA_CHAIN_TABLE, table);
    vg_nlb_str(b, NFTA_CHAIN_NAME, chain);
    if (!type)
        return;
    size_t nest = vg_nlb_nest(b, NFTA_CHAIN_HOOK);
    be32(b, NFTA_HOOK_HOOKNUM, hook);
    be32(b, NFTA_HOOK_PRIORITY, (uint32_t)priority);
    vg_nlb_end(b, nest);
    vg_nlb_str(b, NFTA_CHAIN_TYPE, type);
}

/* The nests of a rule: the rule's list, and one expression's element and data inside it. */
struct expr {
    size_t elem, data;
};

static struct expr expr_begin(struct vg_nlb *b, const char *name) {
    struct expr e = {.elem = vg_nlb_nest(b, NFTA_LIST_ELEM)};
    vg_nlb_str(b, NFTA_EXPR_NAME, name);
    e.data = vg_nlb_nest(b, NFTA_EXPR_DATA);
    return e;
}

static void expr_end(struct vg_nlb *b, struct expr e) {
    vg_nlb_end(b, e.data);
    vg_nlb_end(b, e.elem);
}

void vg_nft_rule(struct vg_nlb *b, const char *table, const char *chain) {
    begin(b, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
    vg_nlb_str(b, NFTA_RULE_TABLE, table);
    vg_nlb_str(b, NFTA_RULE_CHAIN, chain);
    b->nest = vg_nlb_nest(b, NFTA_RULE_EXPRESSIONS);
}

void vg_nft_rule_end(struct vg_nlb *b) {
    vg_nlb_end(b, b->nest);
}

static void value(struct vg_nlb *b, unsigned attr, const void *data, size_t n) {
    size_t nest = vg_nlb_nest(b, attr);
    vg_nlb_attr(b, NFTA_DATA_VALUE, data, n);
    vg_nlb_end(b, nest);
}

static void compare(struct vg_nlb *b, enum vg_nft_test test, const void *data, size_t n) {
    struct expr e = expr_begin(b, "cmp");
    be32(b, NFTA_CMP_SREG, NFT_REG_1);
    be32(b, NFTA_CMP_OP, test);
    value(b, NFTA_CMP_DATA, data, n);
    expr_end(b, e);
}

static void mask(struct vg_nlb *b, uint32_t bits, uint32_t flip) {
    struct expr e = expr_begin(b, "bitwise");
    be32(b, NFTA_BITWISE_SREG, NFT_REG_1);
    be32(b, NFTA_BITWISE_DREG, NFT_REG_1);
    be32(b, NFTA_BITWISE_LEN, sizeof bits);
    value(b, NFTA_BITWISE_MASK, &bits, sizeof bits);
    value(b, NFTA_BITWISE_XOR, &flip, sizeof flip);
    expr_end(b, e);
}

static void load_meta(struct vg_nlb *b, uint32_t key) {
    struct expr e = expr_begin(b, "meta");
    be32(b, NFTA_META_DREG, NFT_REG_1);
    be32(b, NFTA_META_KEY, key);
    expr_end(b, e);
}

static void load_payload(struct vg_nlb *b, uint32_t base, uint32_t offset, uint32_t n) {
    struct expr e = expr_begin(b, "payload");
    be32(b, NFTA_PAYLOAD_DREG, NFT_REG_1);
    be32(b, NFTA_PAYLOAD_BASE, base);
    be32(b, NFTA_PAYLOAD_OFFSET, offset);
    be32(b, NFTA_PAYLOAD_LEN, n);
    expr_end(b, e);
}

/* A whole name is compared with its padding, the beginning of one without. */
static void match_name(struct vg_nlb *b, uint32_t key, const char *name, bool prefix,
                       enum vg_nft_test test) {
    char padded[IFNAMSIZ] = {0};
    size_t n = strnlen(name, IFNAMSIZ - 1);
    memcpy(padded, name, n);
    load_meta(b, key);
    compare(b, test, padded, prefix ? n : sizeof padded);
}

void vg_nft_match_iif(struct vg_nlb *b, const char *name, bool prefix, enum vg_nft_test test) {
    match_name(b, NFT_META_IIFNAME, name, prefix, test);
}

void vg_nft_match_oif(struct vg_nlb *b, const char *name, bool prefix, enum vg_nft_test test) {
    match_name(b, NFT_META_OIFNAME, name, prefix, test);
}

void vg_nft_match_addr(struct vg_nlb *b, enum vg_nft_side side, uint32_t net, unsigned bits,
                       enum vg_nft_test test) {
    uint32_t m = bits == 0 ? 0 : htonl(UINT32_MAX << (32 - bits));
    uint32_t want = htonl(net) & m;
    load_payload(b, NFT_PAYLOAD_NETWORK_HEADER, side, 4);
    if (bits < 32)
        mask(b, m, 0);
    compare(b, test, &want, sizeof want);
}

void vg_nft_match_dport(struct vg_nlb *b, uint8_t proto, uint16_t port) {
    uint16_t want = htons(port);
    load_meta(b, NFT_META_L4PROTO);
    compare(b, VG_NFT_EQ, &proto, sizeof proto);
    load_payload(b, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2);
    compare(b, VG_NFT_EQ, &want, sizeof want);
}

void vg_nft_match_known(struct vg_nlb *b) {
    struct expr e = expr_begin(b, "ct");
    be32(b, NFTA_CT_DREG, NFT_REG_1);
    be32(b, NFTA_CT_KEY, NFT_CT_STATE);
    expr_end(b, e);
    mask(b, STATE_KNOWN, 0);
    uint32_t none = 0;
    compare(b, VG_NFT_NOT, &none, sizeof none);
}

void vg_nft_verdict(struct vg_nlb *b, int verdict, const char *chain) {
    struct expr e = expr_begin(b, "immediate");
    be32(b, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    size_t data = vg_nlb_nest(b, NFTA_IMMEDIATE_DATA);
    size_t v = vg_nlb_nest(b, NFTA_DATA_VERDICT);
    be32(b, NFTA_VERDICT_CODE, (uint32_t)verdict);
    if (chain)
        vg_nlb_str(b, NFTA_VERDICT_CHAIN, chain);
    vg_nlb_end(b, v);
    vg_nlb_end(b, data);
    expr_end(b, e);
}

void vg_nft_masquerade(struct vg_nlb *b) {
    expr_end(b, expr_begin(b, "masq"));
}

static void load_value(struct vg_nlb *b, uint32_t reg, const void *data, size_t n) {
    struct expr e = expr_begin(b, "immediate");
    be32(b, NFTA_IMMEDIATE_DREG, reg);
    value(b, NFTA_IMMEDIATE_DATA, data, n);
    expr_end(b, e);
}

void vg_nft_dnat(struct vg_nlb *b, uint32_t addr, uint16_t port) {
    uint32_t a = htonl(addr);
    uint16_t p = htons(port);
    load_value(b, NFT_REG_1, &a, sizeof a);
    load_value(b, NFT_REG_2, &p, sizeof p);
    struct expr e = expr_begin(b, "nat");
    be32(b, NFTA_NAT_TYPE, NFT_NAT_DNAT);
    be32(b, NFTA_NAT_FAMILY, NFPROTO_IPV4);
    be32(b, NFTA_NAT_REG_ADDR_MIN, NFT_REG_1);
    be32(b, NFTA_NAT_REG_PROTO_MIN, NFT_REG_2);
    expr_end(b, e);
}

struct names {
    vg_nft_each *each;
    void *arg;
    const char *table; /* chains of this one only; NULL for tables */
};

static int name_of(const struct nlmsghdr *h, void *arg) {
    struct names *n = arg;
    size_t g = sizeof(struct nfgenmsg);
    if (!n->table)
        return n->each(vg_nla_str(vg_nla_find(h, g, NFTA_TABLE_NAME)), n->arg);
    if (strcmp(vg_nla_str(vg_nla_find(h, g, NFTA_CHAIN_TABLE)), n->table) != 0)
        return 0;
    return n->each(vg_nla_str(vg_nla_find(h, g, NFTA_CHAIN_NAME)), n->arg);
}

int vg_nft_tables(struct vg_nl *nl, struct vg_nlb *b, vg_nft_each *each, void *arg) {
    struct names n = {.each = each, .arg = arg};
    vg_nlb_reset(b);
    begin(b, NFT_MSG_GETTABLE, 0);
    return vg_nl_dump(nl, b, name_of, &n);
}

int vg_nft_chains(struct vg_nl *nl, struct vg_nlb *b, const char *table, vg_nft_each *each,
                  void *arg) {
    struct names n = {.each = each, .arg = arg, .table = table};
    vg_nlb_reset(b);
    begin(b, NFT_MSG_GETCHAIN, 0);
    return vg_nl_dump(nl, b, name_of, &n);
}

/* test_sha256.c -- tests SHA-256 and HMAC-SHA256 with published values, whole and in pieces. */
#include "model/core/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void assert_digest(const unsigned char digest[SHA256_BYTES], const char *expected)
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    text[strlen(expected)] = 0; /* the RFC gives only the beginning of one value */
    assert_string_equal(text, expected);
}

static void test_sha256_gives_the_published_values(void **state)
{
    static const struct {
        const char *text, *digest;
    } row[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
         "lmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    unsigned char digest[SHA256_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        sha256(row[i].text, strlen(row[i].text), digest);
        assert_digest(digest, row[i].digest);
    }
    Sha256 million;
    char letters[1000];
    memset(letters, 'a', sizeof letters);
    sha256_begin(&million);
    for (int i = 0; i < 1000; i++)
        sha256_add(&million, letters, sizeof letters);
    sha256_end(&million, digest);
    assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_sha256_of_data_in_pieces_equals_that_of_the_whole(void **state)
{
    unsigned char data[200], whole[SHA256_BYTES], pieces[SHA256_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + (i >> 3));
    for (size_t n = 0; n <= sizeof data; n++) {
        sha256(data, n, whole);
        for (size_t cut = 0; cut <= n; cut += 1 + n / 5) {
            Sha256 s;
            sha256_begin(&s);
            sha256_add(&s, data, cut);
            sha256_add(&s, data + cut, n - cut);
            sha256_end(&s, pieces);
            assert_memory_equal(whole, pieces, sizeof whole);
        }
    }
}

/* The test cases of RFC 4231, section 4. */
static void test_hmac_gives_the_values_of_rfc_4231(void **state)
{
    unsigned char repeated[131], data[50], counted[25], mac[SHA256_BYTES];
    const char *text;
    (void)state;
    memset(repeated, 0x0b, 20);
    hmac_sha256(repeated, 20, "Hi There", 8, mac);
    assert_digest(mac, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac);
    assert_digest(mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(repeated, 0xaa, sizeof repeated);
    memset(data, 0xdd, sizeof data);
    hmac_sha256(repeated, 20, data, sizeof data, mac);
    assert_digest(mac, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (size_t i = 0; i < sizeof counted; i++)
        counted[i] = (unsigned char)(i + 1);
    memset(data, 0xcd, sizeof data);
    hmac_sha256(counted, sizeof counted, data, sizeof data, mac);
    assert_digest(mac, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    memset(repeated, 0x0c, 20);
    hmac_sha256(repeated, 20, "Test With Truncation", 20, mac);
    assert_digest(mac, "a3b6167473100ee06e0c796c2955552b");
    memset(repeated, 0xaa, sizeof repeated);
    text = "Test Using Larger Than Block-Size Key - Hash Key First";
    hmac_sha256(repeated, sizeof repeated, text, strlen(text), mac);
    assert_digest(mac, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    text = "This is a test using a larger than block-size key and a larger than block-size data. "
           "The key needs to be hashed before being used by the HMAC algorithm.";
    hmac_sha256(repeated, sizeof repeated, text, strlen(text), mac);
    assert_digest(mac, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

static void test_same_bytes_detects_a_difference_in_any_bit(void **state)
{
    unsigned char a[SHA256_BYTES] = {0}, b[SHA256_BYTES] = {0};
    (void)state;
    assert_true(same_bytes(a, b, sizeof a));
    assert_true(same_bytes(a, b, 0));
    for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(same_bytes(a, b, sizeof a));
        b[bit / 8] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_gives_the_published_values),
        cmocka_unit_test(test_sha256_of_data_in_pieces_equals_that_of_the_whole),
        cmocka_unit_test(test_hmac_gives_the_values_of_rfc_4231),
        cmocka_unit_test(test_same_bytes_detects_a_difference_in_any_bit),
    };
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}

package forge_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/internal/forge"
)

// signatureIn is the signature header of a forge, and the prefix of its value.
var signatureIn = map[forge.Kind][2]string{
	forge.GitHub:         {"X-Hub-Signature-256", "sha256="},
	forge.Gitea:          {"X-Gitea-Signature", ""},
	forge.Forgejo:        {"X-Forgejo-Signature", ""},
	forge.BitbucketCloud: {"X-Hub-Signature", "sha256="},
	forge.BitbucketDC:    {"X-Hub-Signature", "sha256="},
}

func TestHexSignatures(t *testing.T) {
	body := []byte(`{"zen":"Speak like a human."}`)
	right := hexMAC(secret, body)
	for kind, in := range signatureIn {
		src := source(kind)
		src.Secrets = []string{secret, earlier}
		for name, tc := range map[string]struct {
			signature string
			right     bool
		}{
			"right":                       {in[1] + right, true},
			"of the old secret":           {in[1] + hexMAC(earlier, body), true},
			"in upper case":               {in[1] + strings.ToUpper(right), true},
			"of another secret":           {in[1] + hexMAC("another-secret-altogether", body), false},
			"of another body":             {in[1] + hexMAC(secret, append([]byte(" "), body...)), false},
			"of no secret":                {in[1] + hexMAC("", body), false},
			"missing":                     {"", false},
			"empty":                       {in[1], false},
			"cut short":                   {in[1] + right[:62], false},
			"cut within a byte":           {in[1] + right[:63], false},
			"with more after it":          {in[1] + right + "00", false},
			"no hexadecimal":              {in[1] + strings.Repeat("zz", 32), false},
			"SHA-1":                       {in[1] + sha1MAC(secret, body), false},
			"SHA-1, called by its name":   {"sha1=" + sha1MAC(secret, body), false},
			"SHA-256, called SHA-1":       {"sha1=" + right, false},
			"with the prefix twice":       {"sha256=sha256=" + right, false},
			"the secret itself":           {secret, false},
			"with a space before it":      {" " + in[1] + right, false},
			"with the prefix in capitals": {"SHA256=" + right, false},
		} {
			header := http.Header{in[0]: nil}
			header.Set(in[0], tc.signature)
			check(t, string(kind)+", "+name, src, header, body, tc.right)
		}
	}
}

func TestSHA1SignatureIsRefused(t *testing.T) {
	body := []byte(`{}`)
	for kind := range signatureIn {
		header := http.Header{}
		header.Set("X-Hub-Signature", "sha1="+sha1MAC(secret, body))
		check(t, string(kind), source(kind), header, body, false)
	}
}

func TestConnectionTestOfBitbucketIsNotSigned(t *testing.T) {
	body := []byte(`{"test":true}`)
	header := http.Header{"X-Event-Key": {"diagnostics:ping"}}
	for _, kind := range []forge.Kind{forge.BitbucketCloud, forge.BitbucketDC, forge.GitHub} {
		if got := forge.IsUnsignedTest(source(kind), header); got != (kind == forge.BitbucketDC) {
			t.Errorf("%s: %v", kind, got)
		}
		check(t, string(kind)+", not verified", source(kind), header, body, false)
	}
	if forge.IsUnsignedTest(source(forge.BitbucketDC), http.Header{"X-Event-Key": {"repo:refs_changed"}}) {
		t.Error("a push is no test")
	}
	header.Set("X-Hub-Signature", "sha256="+hexMAC("another-secret-altogether", body))
	if forge.IsUnsignedTest(source(forge.BitbucketDC), header) {
		t.Error("a test with a wrong signature is answered")
	}
}

func TestDeliveryOfAnotherForgeIsToldSo(t *testing.T) {
	for sender, header := range map[string]http.Header{
		"gitlab":       {"X-Gitlab-Event": {"Push Hook"}, "X-Gitlab-Token": {"x"}},
		"gitea":        {"X-Gitea-Event": {"push"}, "X-Gogs-Event": {"push"}},
		"forgejo":      {"X-Forgejo-Event": {"push"}, "X-Gitea-Event": {"push"}},
		"bitbucket-dc": {"X-Event-Key": {"repo:push"}},
		"":             {"X-Github-Event": {"push"}, "X-Gitea-Event": {"push"}},
	} {
		_, err := forge.Receive(source(forge.GitHub), header, []byte("{}"), now)
		if !errors.Is(err, forge.ErrUnauthorized) || strings.Contains(err.Error(), "seems to be from") != (sender != "") ||
			!strings.Contains(err.Error(), sender) {
			t.Errorf("%s: %v", sender, err)
		}
	}
}

func TestGiteaSignatureHeaders(t *testing.T) {
	body := []byte(`{}`)
	for _, kind := range []forge.Kind{forge.Gitea, forge.Forgejo} {
		for name, tc := range map[string]struct {
			headers map[string]string
			right   bool
		}{
			"as GitHub":                      {map[string]string{"X-Hub-Signature-256": "sha256=" + hexMAC(secret, body)}, true},
			"Forgejo's":                      {map[string]string{"X-Forgejo-Signature": hexMAC(secret, body)}, true},
			"Gitea's":                        {map[string]string{"X-Gitea-Signature": hexMAC(secret, body)}, true},
			"a wrong one and a right one":    {map[string]string{"X-Gitea-Signature": hexMAC(earlier, body), "X-Hub-Signature-256": "sha256=" + hexMAC(secret, body)}, false},
			"bare, in the header of another": {map[string]string{"X-Hub-Signature-256": hexMAC(secret, body)}, false},
		} {
			header := http.Header{}
			for key, value := range tc.headers {
				header.Set(key, value)
			}
			check(t, string(kind)+", "+name, source(kind), header, body, tc.right)
		}
	}
}

func TestGitLabTokens(t *testing.T) {
	src := source(forge.GitLab)
	src.Secrets = []string{secret, earlier}
	for token, right := range map[string]bool{
		secret: true, earlier: true, "": false, secret[:20]: false, secret + "x": false, " ": false, strings.ToUpper(secret): false,
	} {
		header := http.Header{}
		header.Set("X-Gitlab-Token", token)
		check(t, "token "+token, src, header, []byte(`{}`), right)
	}
}

func TestAzureSecrets(t *testing.T) {
	src := source(forge.Azure)
	src.Secrets = []string{secret, earlier}
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, tc := range map[string]struct {
		authorization, token string
		right                bool
	}{
		"the password":               {basic("azure:" + secret), "", true},
		"the password of no user":    {basic(":" + secret), "", true},
		"the old password":           {basic("azure:" + earlier), "", true},
		"the header":                 {"", secret, true},
		"the old secret's header":    {"", earlier, true},
		"neither":                    {"", "", false},
		"a wrong password":           {basic("azure:another-secret-altogether"), "", false},
		"no password":                {basic("azure:"), "", false},
		"the secret as user name":    {basic(secret + ":"), "", false},
		"a wrong password, header":   {basic("azure:x"), secret, false},
		"a token of another kind":    {"Bearer " + secret, "", false},
		"a password not in base64":   {"Basic azure:" + secret, "", false},
		"a wrong header":             {"", secret[:20], false},
		"the header in upper case":   {"", strings.ToUpper(secret), false},
		"the password and more":      {basic("azure:" + secret + "x"), "", false},
		"the password in upper case": {basic("azure:" + strings.ToUpper(secret)), "", false},
	} {
		header := http.Header{}
		header.Set("Authorization", tc.authorization)
		header.Set("X-Lockstep-Token", tc.token)
		check(t, name, src, header, []byte(`{}`), tc.right)
	}
}

func TestStandardSignatures(t *testing.T) {
	body := []byte(`{"type":"ping"}`)
	key := []byte("0123456789abcdef0123456789abcdef")
	encoded := "whsec_" + base64.StdEncoding.EncodeToString(key)
	for _, kind := range []forge.Kind{forge.Standard, forge.GitLab} {
		src := source(kind)
		src.Secrets = []string{encoded, earlier}
		for name, tc := range map[string]struct {
			change func(http.Header)
			right  bool
		}{
			"right":                      {func(http.Header) {}, true},
			"of the old secret, raw":     {func(h http.Header) { signStandard(h, []byte(earlier), "m.1", now, body) }, true},
			"among others":               {func(h http.Header) { h.Set("webhook-signature", "v1a,xx v1,AAAA "+h.Get("webhook-signature")) }, true},
			"five minutes ago":           {func(h http.Header) { signStandard(h, key, "m", now.Add(-5*time.Minute), body) }, true},
			"five minutes ahead":         {func(h http.Header) { signStandard(h, key, "m", now.Add(5*time.Minute), body) }, true},
			"stale":                      {func(h http.Header) { signStandard(h, key, "m", now.Add(-5*time.Minute-time.Second), body) }, false},
			"of the future":              {func(h http.Header) { signStandard(h, key, "m", now.Add(5*time.Minute+time.Second), body) }, false},
			"the secret's text as key":   {func(h http.Header) { signStandard(h, []byte(encoded), "m", now, body) }, false},
			"another secret":             {func(h http.Header) { signStandard(h, []byte("another-secret-altogether"), "m", now, body) }, false},
			"no secret":                  {func(h http.Header) { signStandard(h, nil, "m", now, body) }, false},
			"another body":               {func(h http.Header) { signStandard(h, key, "m", now, []byte(`{}`)) }, false},
			"another id":                 {func(h http.Header) { h.Set("webhook-id", "other") }, false},
			"no id":                      {func(h http.Header) { h.Del("webhook-id") }, false},
			"another time":               {func(h http.Header) { h.Set("webhook-timestamp", "1795262401") }, false},
			"no time":                    {func(h http.Header) { h.Del("webhook-timestamp") }, false},
			"a time that is none":        {func(h http.Header) { h.Set("webhook-timestamp", "now") }, false},
			"a time without end":         {func(h http.Header) { h.Set("webhook-timestamp", strings.Repeat("9", 30)) }, false},
			"no signature":               {func(h http.Header) { h.Del("webhook-signature") }, false},
			"a signature of nothing":     {func(h http.Header) { h.Set("webhook-signature", "v1,") }, false},
			"cut short":                  {func(h http.Header) { h.Set("webhook-signature", h.Get("webhook-signature")[:40]) }, false},
			"of another version":         {func(h http.Header) { h.Set("webhook-signature", "v2"+h.Get("webhook-signature")[2:]) }, false},
			"no version":                 {func(h http.Header) { h.Set("webhook-signature", h.Get("webhook-signature")[3:]) }, false},
			"wrong, but a GitLab token":  {func(h http.Header) { h.Set("webhook-signature", "v1,AAAA"); h.Set("X-Gitlab-Token", earlier) }, false},
			"stale, but a GitLab token":  {func(h http.Header) { h.Set("webhook-timestamp", "1"); h.Set("X-Gitlab-Token", earlier) }, false},
			"with commas between them":   {func(h http.Header) { h.Set("webhook-signature", "v1,AAAA,"+h.Get("webhook-signature")) }, false},
			"right, and a tampered body": {func(h http.Header) { signStandard(h, key, "m", now, append(body, ' ')) }, false},
		} {
			header := http.Header{}
			signStandard(header, key, "m", now, body)
			tc.change(header)
			check(t, string(kind)+", "+name, src, header, body, tc.right)
		}
	}
}

func TestSourceWithoutSecret(t *testing.T) {
	body := []byte(`{}`)
	for kind := range headersOf {
		signed := signed(source(kind), "x", body)
		for name, tc := range map[string]struct {
			secrets  []string
			unsigned bool
			header   http.Header
			right    bool
		}{
			"takes nothing":                       {nil, false, http.Header{}, false},
			"takes nothing that is signed either": {nil, false, signed, false},
			"takes anything if it is to":          {nil, true, http.Header{}, true},
			"but not if there is one":             {[]string{secret}, true, http.Header{}, false},
			"an empty secret proves nothing":      {[]string{""}, false, emptySigned(kind, body), false},
			"nor beside another":                  {[]string{secret, ""}, false, emptySigned(kind, body), false},
		} {
			src := forge.Source{Name: "hub", Kind: kind, Secrets: tc.secrets, Unsigned: tc.unsigned}
			check(t, string(kind)+" "+name, src, tc.header, body, tc.right)
		}
	}
}

func emptySigned(kind forge.Kind, body []byte) http.Header {
	return signed(forge.Source{Kind: kind, Secrets: []string{""}}, "x", body)
}

// check receives a delivery and expects success, or ErrUnauthorized without the secret in its text.
func check(t *testing.T, name string, src forge.Source, header http.Header, body []byte, right bool) {
	t.Helper()
	d, err := forge.Receive(src, header, body, now)
	switch {
	case right && err != nil:
		t.Errorf("%s: %v, want it accepted", name, err)
	case !right && !errors.Is(err, forge.ErrUnauthorized):
		t.Errorf("%s: %v, want it refused", name, err)
	case !right && (len(d.Events) > 0 || d.Ping):
		t.Errorf("%s: refused, and %v", name, d)
	case err != nil:
		for _, s := range src.Secrets {
			if s != "" && strings.Contains(err.Error(), s) {
				t.Errorf("%s: the error contains the secret: %v", name, err)
			}
		}
	}
}

func sha1MAC(key string, body []byte) string {
	h := hmac.New(sha1.New, []byte(key))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

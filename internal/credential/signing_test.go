package credential_test

import (
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/credential"
)

func TestSigningSecrets(t *testing.T) {
	const urls = "https://apps.example.com/hooks https://other.example.com/"
	for name, tc := range map[string]struct {
		files map[string]string
		url   string
		want  []string
		err   string
	}{
		"one":                             {map[string]string{"signingSecret": "s3cret\n", "urls": urls}, "https://apps.example.com/hooks/docs?x=1", []string{"s3cret"}, ""},
		"two, during rotation":            {map[string]string{"signingSecret": "s3cret", "previousSigningSecret": "0ld", "urls": urls}, "https://other.example.com/", []string{"s3cret", "0ld"}, ""},
		"only the previous one":           {map[string]string{"previousSigningSecret": "s3cret", "urls": urls}, "https://other.example.com/", nil, "signingSecret"},
		"none":                            {map[string]string{"password": "s3cret", "urls": urls}, "https://other.example.com/", nil, "signingSecret"},
		"a URL outside the prefixes":      {map[string]string{"signingSecret": "s3cret", "urls": urls}, "https://evil.example/hooks", nil, "urls"},
		"a path outside the prefixes":     {map[string]string{"signingSecret": "s3cret", "urls": urls}, "https://apps.example.com/hooks/../x", nil, "urls"},
		"a URL without a path":            {map[string]string{"signingSecret": "s3cret", "urls": urls}, "https://other.example.com", []string{"s3cret"}, ""},
		"no path, and no slash":           {map[string]string{"signingSecret": "s3cret", "urls": "https://apps.example.com"}, "https://apps.example.com?x=1", []string{"s3cret"}, ""},
		"no path, but the prefix has one": {map[string]string{"signingSecret": "s3cret", "urls": "https://apps.example.com/hooks"}, "https://apps.example.com", nil, "urls"},
		"no URLs":                         {map[string]string{"signingSecret": "s3cret"}, "https://apps.example.com/hooks", nil, "urls"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := credential.NewStore(folder(t, "docs", tc.files), none).SigningSecrets("docs", tc.url)
			if !slices.Equal(got, tc.want) || (err == nil) != (tc.err == "") {
				t.Fatalf("%d secrets, error %v", len(got), err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "s3cret") || events.DispositionOf(err) != events.Permanent) {
				t.Errorf("error: %v", err)
			}
		})
	}
	env := map[string]string{"LOCKSTEP_CREDENTIAL_DOCS_SIGNING_SECRET": "a", "LOCKSTEP_CREDENTIAL_DOCS_PREVIOUS_SIGNING_SECRET": "b",
		"LOCKSTEP_CREDENTIAL_DOCS_URLS": "https://h/"}
	got, err := credential.NewStore("", func(name string) string { return env[name] }).SigningSecrets("docs", "https://h/x")
	if err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("from variables: %d secrets, error %v", len(got), err)
	}
	for _, name := range []string{"", "../etc", "a/b"} {
		if _, err := credential.NewStore(t.TempDir(), none).SigningSecrets(name, "https://h/x"); events.DispositionOf(err) != events.Permanent {
			t.Errorf("%q: %v", name, err)
		}
	}
}

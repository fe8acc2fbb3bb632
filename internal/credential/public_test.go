package credential_test

import (
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/testenv"
)

func TestPublicKeys(t *testing.T) {
	t.Parallel()
	ring := "\x99binary\r\n"
	dir := folder(t, "team", map[string]string{"openpgpKeys": ring, "revokedKeys": strings.Repeat("#", 512<<10)})
	keys, err := credential.NewStore(dir, none).PublicKeys("team")
	if err != nil || keys["openpgpKeys"] != ring || len(keys["revokedKeys"]) != 512<<10 {
		t.Errorf("got %d and %d bytes, %v", len(keys["openpgpKeys"]), len(keys["revokedKeys"]), err)
	}
	variables := func(name string) string {
		return map[string]string{"LOCKSTEP_CREDENTIAL_TEAM_ALLOWED_SIGNERS": "alice ssh-ed25519 AAAA"}[name]
	}
	if keys, err := credential.NewStore("", variables).PublicKeys("team"); err != nil || !strings.HasPrefix(keys["allowedSigners"], "alice") {
		t.Errorf("from variables: got %v, %v", keys, err)
	}
	if keys, err := credential.NewStore(dir, none).PublicKeys("gone"); err != nil || keys["openpgpKeys"] != "" {
		t.Errorf("of no credential: got %v, %v", keys, err)
	}
	for _, name := range []string{"../team", ""} {
		_, err = credential.NewStore(dir, none).PublicKeys(name)
		testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	}
	_, err = credential.NewStore(folder(t, "big", map[string]string{"allowedSigners": strings.Repeat("#", 1<<20+1)}), none).PublicKeys("big")
	testenv.MustFail(t, err, events.ClassConfig, events.Retryable)
}

package credential_test

import (
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/testenv"
)

func TestVerificationKeys(t *testing.T) {
	t.Parallel()
	ring := "\x99binary\r\n"
	dir := folder(t, "team", map[string]string{"openpgpKeys": ring, "revokedKeys": strings.Repeat("#", 512<<10)})
	keys, err := credential.NewStore(dir, none).VerificationKeys("team")
	if err != nil || keys.OpenPGPKeys != ring || len(keys.RevokedKeys) != 512<<10 {
		t.Errorf("got %d and %d bytes, %v", len(keys.OpenPGPKeys), len(keys.RevokedKeys), err)
	}
	variables := func(name string) string {
		return map[string]string{"LOCKSTEP_CREDENTIAL_TEAM_ALLOWED_SIGNERS": "alice ssh-ed25519 AAAA"}[name]
	}
	if keys, err := credential.NewStore("", variables).VerificationKeys("team"); err != nil || !strings.HasPrefix(keys.AllowedSigners, "alice") {
		t.Errorf("from variables: got %+v, %v", keys, err)
	}
	_, err = credential.NewStore(folder(t, "other", map[string]string{"revokedKeys": "x"}), none).VerificationKeys("other")
	testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	for _, name := range []string{"gone", "../team", ""} {
		_, err = credential.NewStore(dir, none).VerificationKeys(name)
		testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	}
	_, err = credential.NewStore(folder(t, "big", map[string]string{"allowedSigners": strings.Repeat("#", 1<<20+1)}), none).VerificationKeys("big")
	testenv.MustFail(t, err, events.ClassConfig, events.Retryable)
}

package wire

import (
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestEmptyRepositoryOverOldSSH lists an empty repository of a server of protocol 0, which sends nothing but a flush before Git 2.41
// and then waits for the client.
func TestEmptyRepositoryOverOldSSH(t *testing.T) {
	server, _ := startGit(t)
	ssh := testenv.Must(server.StartSSH())(t)
	t.Cleanup(ssh.Close)
	ssh.Answer(&gitserver.SSHAnswer{Stdout: "0000", Hang: true})
	r := dial(t, newNetwork(t), ssh.URL(widgets), Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()})
	began := time.Now()
	testenv.MustFail(t, r.List(t.Context(), "HEAD"), events.ClassNoRef, events.Permanent)
	if took := time.Since(began); took >= new(Network).timeouts("").Refs {
		t.Errorf("took %v", took)
	}
}

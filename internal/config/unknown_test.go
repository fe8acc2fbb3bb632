package config_test

import (
	"slices"
	"testing"

	"lockstep/internal/config"
)

func TestUnknownVariables(t *testing.T) {
	for pair, nearest := range map[string]string{
		"LOCKSTEP_LEESE=20s":                  "LOCKSTEP_LEASE",
		"LOCKSTEP_REDIS_URL=redis://h":        "",
		"LOCKSTEP_API_TOKE=x":                 "LOCKSTEP_API_TOKEN",
		"LOCKSTEP_LOCKWAIT=20s":               "LOCKSTEP_LOCK_WAIT",
		"LOCKSTEP_HOOK=hooks":                 "LOCKSTEP_HOOKS",
		"LOCKSTEP_CREDENTIAL=credentials":     "LOCKSTEP_CREDENTIALS",
		"LOCKSTEP_PORT=8080":                  "",
		"LOCKSTEP_lease=20s":                  "known",
		"LOCKSTEP_=x":                         "",
		"LOCKSTEP_POETRY=x":                   "",
		"LOCKSTEP_EXPORT=1":                   "",
		"LOCKSTEP_LEESE=":                     "known", // an empty variable counts as unset
		"LOCKSTEP_HOOK_X_SECRET=x":            "known",
		"LOCKSTEP_CREDENTIAL_X_URLS=x":        "known",
		"LOCKSTEP_API_TOKEN=0123456789abcdef": "known",
		"LOCKSTEP_TREE=/repos/acme/widgets":   "known",
		"LOCKSTEP_TEST=all":                   "known",
		"LEESE=20s":                           "known",
		"LOCKSTEPS=3":                         "known",
		// A Kubernetes service called lockstep, and one called lockstep-receiver:
		"LOCKSTEP_SERVICE_HOST=10.0.0.1":                    "known",
		"LOCKSTEP_SERVICE_PORT=80":                          "known",
		"LOCKSTEP_SERVICE_PORT_HTTP=80":                     "known",
		"LOCKSTEP_PORT=tcp://10.0.0.1:80":                   "known",
		"LOCKSTEP_PORT_80_TCP=tcp://10.0.0.1:80":            "known",
		"LOCKSTEP_PORT_80_TCP_ADDR=10.0.0.1":                "known",
		"LOCKSTEP_RECEIVER_SERVICE_HOST=10.0.0.1":           "known",
		"LOCKSTEP_RECEIVER_PORT=tcp://10.0.0.1:80":          "known",
		"LOCKSTEP_RECEIVER_PORT_8080_UDP_PROTO=udp":         "known",
		"LOCKSTEP_RECEIVER_PORT_8080_TCP=tcp://10.0.0.1:80": "known",
	} {
		c, err := config.Load(nil, "", []string{pair, "LOCKSTEP_SLOTS=5"})
		if err != nil || c.Slots != 5 {
			t.Errorf("%s: %d slots, %v", pair, c.Slots, err)
		}
		switch {
		case nearest == "known" && len(c.Unknown) > 0:
			t.Errorf("%s: %s", pair, c.Unknown)
		case nearest != "known" && (len(c.Unknown) != 1 || c.Unknown[0].Nearest != nearest):
			t.Errorf("%s: %s, want one variable, similar to %q", pair, c.Unknown, nearest)
		}
	}
	c, err := config.Load(nil, "", []string{"LOCKSTEP_B=1", "LOCKSTEP_A=1"})
	names := []string{}
	for _, u := range c.Unknown {
		names = append(names, u.Name)
	}
	if err != nil || !slices.Equal(names, []string{"LOCKSTEP_A", "LOCKSTEP_B"}) {
		t.Errorf("%s, %v", names, err)
	}
}

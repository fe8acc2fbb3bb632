// Package doctor checks whether Redis, the volume and the machine suit the service, and advises what to change.
package doctor

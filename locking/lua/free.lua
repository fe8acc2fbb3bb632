-- free.lua opens release.lua: the release that nobody waits for, before anything else is set up.

if ARGV[6] == '' and redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return {'gone'} end
  redis.call('HDEL', KEYS[1], 'owner', 'expires') -- which Redis does even when it is out of memory
  return {'free'}
end

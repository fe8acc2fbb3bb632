-- free.lua precedes release.lua. It releases a lease that nobody waits for, without further setup.

if ARGV[6] == '' and redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return {'gone'} end
  redis.call('HDEL', KEYS[1], 'owner', 'expires') -- works even when Redis is out of memory
  return {'free'}
end
